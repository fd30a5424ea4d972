"""A mixture of experts beside a dense layer of equal active work: forward and backward, one interleaved run.

    python benchmarks/experts.py [--dim 512 --hidden 2048 --experts 8 --active 2 --rounds 30] [--json FILE]

All contenders do the same matrix products per token: the dense layer is `active` times as wide as an expert. They take
turns in one process, one pass each, round after round; every pass gives gradients of the input and of every weight. The
router, the loads and the sorting are part of a mixture's time. A share is the dense layer's median over the contender's.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any


def contenders(arguments: argparse.Namespace, tokens: int) -> dict[str, Callable[[int], Callable[[], None]]]:
    """By name: given a seed, one pass over the input that the seed makes, so that loads differ from round to round."""
    import torch

    from heddle.config.layers import GatedConfig, MLPConfig, MoEConfig
    from heddle.nn.feedforward import MLP, Gated
    from heddle.nn.layout import Layout
    from heddle.nn.moe import MoE
    from heddle.nn.setting import Setting

    torch.manual_seed(0)
    kind = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[arguments.precision])
    activation = "silu" if arguments.gated else "gelu"
    layout = Layout.whole(1, tokens, arguments.device)
    wide = arguments.active * arguments.hidden
    setting, kind_of = Setting(arguments.dim), GatedConfig if arguments.gated else MLPConfig
    layer: Any = Gated if arguments.gated else MLP
    dense: Any = layer(kind_of(hidden=wide, activation=activation, bias=False), setting)

    def mixture(dispatch: Any) -> MoE:
        expert = kind_of(hidden=arguments.hidden, activation=activation, bias=False)
        sizes = {"experts": arguments.experts, "active": arguments.active}
        made = MoE(MoEConfig(**sizes, expert=expert, renormalise=True, dispatch=dispatch), setting)
        return made.to(arguments.device, kind)

    def timed(module: Any) -> Callable[[int], Callable[[], None]]:
        module = module.to(arguments.device, kind)
        if isinstance(module, MoE):
            module.router.float()

        def prepared(seed: int) -> Callable[[], None]:
            generator = torch.Generator().manual_seed(seed)
            x, above = (
                torch.randn(1, tokens, arguments.dim, generator=generator).to(arguments.device, kind) for _ in range(2)
            )
            x.requires_grad_()
            module.zero_grad(set_to_none=True)

            def go() -> None:
                module(x, layout).hidden.backward(above)
                if arguments.device == "cuda":
                    torch.cuda.synchronize()

            return go

        return prepared

    return {"dense": timed(dense), "grouped": timed(mixture("grouped")), "loop": timed(mixture("loop"))}


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every contender at every number of tokens, taken in turns."""
    import torch

    from heddle.train.runtime import keep_memory

    torch.set_num_threads(arguments.threads)
    keep_memory()
    rows = []
    for tokens in arguments.tokens:
        passes = contenders(arguments, tokens)
        for prepared in passes.values():
            for seed in range(3):
                prepared(seed)()
        seconds: dict[str, list[float]] = {name: [] for name in passes}
        names = list(passes)
        for number in range(arguments.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                go = passes[name](1000 + number)
                began = time.perf_counter()
                go()
                seconds[name].append(time.perf_counter() - began)
        for name, times in seconds.items():
            ordered = sorted(times)
            rows.append(
                {
                    "tokens": tokens,
                    "contender": name,
                    "seconds": median(times),
                    "lower_quartile": ordered[len(ordered) // 4],
                    "upper_quartile": ordered[-1 - len(ordered) // 4],
                    "fastest": ordered[0],
                    "slowest": ordered[-1],
                    "share_of_dense": median(seconds["dense"]) / median(times),
                }
            )
    sizes = ("dim", "hidden", "experts", "active", "gated", "precision", "threads", "device", "rounds")
    return {**{name: getattr(arguments, name) for name in sizes}, "torch": torch.__version__, "contenders": rows}


def show(result: dict[str, Any]) -> None:
    """The same as a table."""
    print(
        f"{result['experts']} experts, {result['active']} active, {result['dim']} -> {result['hidden']}, "
        f"{result['precision']}, forward and backward, {result['threads']} threads, {result['device']}, "
        f"torch {result['torch']}, median of {result['rounds']}\n"
    )
    print("| tokens | contender | ms, median (quartiles; min to max) | share of the dense rate |")
    print("|---|---|---|---|")
    for row in result["contenders"]:
        middle, low, high, best, worst = (
            1000 * row[name] for name in ("seconds", "lower_quartile", "upper_quartile", "fastest", "slowest")
        )
        times = f"{middle:.1f} ({low:.1f} to {high:.1f}; {best:.1f} to {worst:.1f})"
        print(f"| {row['tokens']:,} | {row['contender']} | {times} | {row['share_of_dense']:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=2048, help="width of one expert")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--active", type=int, default=2)
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 512])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = race(arguments)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
