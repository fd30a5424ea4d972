"""Measures heddle's fixed numbers on this machine: each compared with its neighbours, in turns.

    python benchmarks/choices.py [--only loss lines slices spin widths muon] [--rounds 7] [--json FILE]

loss: logits that the loss computes at a time (`heddle.model.device.LOGITS_BYTES`), forward and backward of head and loss.
lines: rows of the logits' gradient that start at multiples of 64 numbers, compared with contiguous rows.
slices: keys that are copied before the product with their transpose (`heddle.nn.kernels.plain.transposed`), one query.
spin: how long idle threads spin before they sleep (GOMP_SPINCOUNT), measured by the time of a training step.
widths: cached keys in widths rounded to 64, compared with exact ones, in one decoding step of attention.
muon: Muon's share of a training step, by iteration, at width 384 and 4,096 tokens.
For the length up to which attention is plain products, see benchmarks/attention.py. A number is a good choice if its time is
within a few percent of the best in its table.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
SPINS = ["0", "1000", "10000", "100000", "infinite"]


def turns(contenders: Mapping[str, Callable[..., object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, round after round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            began = time.perf_counter()
            call()
            if number:
                times[name].append(1e3 * (time.perf_counter() - began))
    return times


def rows_of(what: str, times: dict[str, list[float]], chosen: str) -> list[Row]:
    """A table's rows: medians, spread, and the ratio to the chosen one's time, round by round."""
    return [
        {
            "what": what,
            "choice": name,
            "chosen": name == chosen,
            "milliseconds": median(each),
            "fastest": min(each),
            "slowest": max(each),
            "ratio": median(a / b for a, b in zip(each, times[chosen], strict=True)),
        }
        for name, each in times.items()
    ]


def precisions() -> list[str]:
    """fp32, and bf16 if it is not slower."""
    import torch

    from heddle.account import slowdown

    return ["fp32"] + (["bf16"] if slowdown(torch.bfloat16) < 1 else [])


def loss(rounds: int) -> list[Row]:
    import torch

    from heddle.model.device import LOGITS_BYTES
    from heddle.model.head import Scores
    from heddle.model.precision import DTYPES
    from heddle.tasks.loss import cross_entropy
    from heddle.train.runtime import keep_memory

    keep_memory()
    rows = []
    for precision in precisions():
        for positions, vocabulary, dim in ((1024, 50257, 768), (4096, 4096, 128)):
            hidden = torch.randn(positions, dim).to(DTYPES[precision]).requires_grad_()
            table = torch.randn(vocabulary, dim).mul_(0.02).requires_grad_()
            targets, weights = torch.randint(vocabulary, (positions,)), torch.ones(positions)

            def go(chunk: int, inputs: Any = (hidden, table, targets, weights, vocabulary)) -> None:
                hidden, table, targets, weights, vocabulary = inputs
                total, _ = cross_entropy(hidden, targets, weights, Scores(table, vocabulary), chunk)
                torch.autograd.grad(total, (hidden, table))

            sizes = {
                f"{size >> 20} MiB": max(64, size // (4 * vocabulary))
                for size in [2**n << 20 for n in (4, 6, 7, 8, 10)]
            }
            calls = {name: partial(go, min(chunk, positions)) for name, chunk in sizes.items()}
            what = f"loss, {positions:,} x {vocabulary:,}, width {dim}, {precision}"
            rows += rows_of(what, turns(calls, rounds), f"{LOGITS_BYTES >> 20} MiB")
    return rows


def lines(rounds: int) -> list[Row]:
    import torch

    from heddle.model.precision import DTYPES

    rows = []
    for precision in precisions():
        kind = DTYPES[precision]
        source, hidden = torch.randn(1024, 50257), torch.randn(1024, 768).to(kind)

        def as_they_come(inputs: Any = (source, hidden, kind)) -> object:
            source, hidden, kind = inputs
            return source.to(kind).T @ hidden

        def in_lines(inputs: Any = (source, hidden, kind)) -> object:
            source, hidden, kind = inputs
            return source.new_empty(1024, 50304, dtype=kind)[:, :50257].copy_(source).T @ hidden

        chosen = "as they come" if precision == "fp32" else "multiples of 64"
        calls = {"as they come": as_they_come, "multiples of 64": in_lines}
        rows += rows_of(f"rows of the logits' gradient, {precision}", turns(calls, rounds), chosen)
    return rows


def slices(rounds: int) -> list[Row]:
    import torch

    from heddle.model.precision import DTYPES

    rows = []
    for precision in precisions():
        for heads, visible, capacity in ((32, 24, 64), (32, 512, 1024), (1280, 24, 64)):
            q = torch.randn(heads, 1, 32).to(DTYPES[precision])
            k = torch.randn(heads, capacity, 32).to(DTYPES[precision])[:, :visible]

            def go(copied: bool, q: Any = q, k: Any = k) -> None:
                for _ in range(20):
                    torch.bmm(q, (k.contiguous() if copied else k).transpose(1, 2))

            calls = {"as they are": partial(go, False), "copied": partial(go, True)}
            what = f"{visible} of {capacity:,} cached keys of width 32, {heads:,} heads in all, {precision}"
            rows += rows_of(what, turns(calls, rounds), "copied" if precision == "bf16" else "as they are")
    return rows


def widths(rounds: int) -> list[Row]:
    import torch
    from torch.nn import functional as F

    from heddle.model.precision import DTYPES

    rows = []
    for precision in precisions():
        for batch in (1, 8):
            q = torch.randn(batch, 12, 1, 64).to(DTYPES[precision])
            keys = {width: torch.randn(batch, 12, width, 64).to(DTYPES[precision]) for width in (65, 97, 128)}

            def go(k: Any, masked: bool, q: Any = q) -> None:
                mask = (torch.arange(k.shape[2]) < 65)[None, None, None] if masked else None
                for _ in range(20):
                    F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

            calls = {
                "65, exact": lambda go=go, keys=keys: go(keys[65], False),
                "rounded to 128": lambda go=go, keys=keys: go(keys[128], True),
            }
            rows += rows_of(f"65 cached keys, batch {batch}, {precision}", turns(calls, rounds), "rounded to 128")
    return rows


def training(
    dim: int, depth: int, context: int, batch: int, precision: str, optimizer: str = "muon"
) -> Callable[[], object]:
    """A training step of a model built as by `heddle train`."""
    import numpy as np

    from heddle import build, sized
    from heddle.config import TrainConfig
    from heddle.data import next_token_batch
    from heddle.model.linear import use_products
    from heddle.tasks import CrossEntropy
    from heddle.train import Optimizer, train_step
    from heddle.train.rates import pick_products
    from heddle.train.runtime import keep_memory

    keep_memory()
    model = build(sized(depth, vocab_size=4096, context=context, dim=dim)).train()
    by_onednn = pick_products("auto", model.config, batch * context, "cpu", precision)
    use_products(model, by_onednn)
    made = Optimizer(model, TrainConfig(optimizer=optimizer), 1e-4, precision, by_onednn)
    objective = CrossEntropy(model)
    ids = np.random.default_rng(0).integers(0, 4096, (batch, context + 1))
    examples = next_token_batch(ids)
    return lambda: train_step(objective, made, examples, 1, 1.0, 1.0)


def muon(rounds: int) -> list[Row]:
    import torch

    from heddle.model.precision import DTYPES
    from heddle.train.muon import FIVE, THREE, Muon
    from heddle.train.rates import pick_products

    rows = []
    for precision in precisions():
        step = training(384, 2, 256, 16, precision, "adamw")
        # The matrices of two layers of the default model, as in the step above.
        from heddle import build, sized
        from heddle.model.roles import role

        model = build(sized(2, vocab_size=4096, context=256, dim=384))
        matrices = [
            parameter for name, parameter in model.named_parameters() if role(name, parameter.dim()) == "matrix"
        ]
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        by_onednn = pick_products("auto", model.config, 4096, "cpu", precision)
        made: dict[str, torch.optim.Optimizer] = {
            "three steps (heddle)": Muon(matrices, 0.0, dtype=DTYPES[precision], iteration=THREE, by_onednn=by_onednn),
            "five steps (as torch)": Muon(matrices, 0.0, dtype=DTYPES[precision], iteration=FIVE, tight=False),
        }
        if precision == "bf16":
            made["torch.optim.Muon"] = torch.optim.Muon(matrices, lr=0.0)
        times = turns({"rest of the step": step} | {name: each.step for name, each in made.items()}, rounds)
        whole = median(times["rest of the step"])
        for row in rows_of(f"Muon, width 384, 4,096 tokens, {precision}", times, "three steps (heddle)"):
            if row["choice"] in made:
                row["share"] = row["milliseconds"] / (whole + row["milliseconds"])
            rows.append(row)
    return rows


def spin(rounds: int) -> list[Row]:
    rows = []
    for name, words in {"4 x 128, 12 x 64 tokens": "128 4 64 12", "2 x 128, 16 x 256 tokens": "128 2 256 16"}.items():
        processes = {}
        for count in SPINS:
            environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": count}
            command = [sys.executable, __file__, "--step", *words.split()]
            processes[count] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        times: dict[str, list[float]] = {count: [] for count in SPINS}
        for number in range(rounds + 1):
            for count, process in processes.items():
                process.send_signal(signal.SIGCONT)
                process.stdin.write("go\n")
                process.stdin.flush()
                taken = float(process.stdout.readline())
                # Threads that spin for ever would take a core from all others while they wait for their turn.
                process.send_signal(signal.SIGSTOP)
                if number:
                    times[count].append(taken)
        for process in processes.values():
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
            process.wait()
        rows += rows_of(f"idle threads spin, {name}, {precisions()[-1]}", times, "10000")
    return rows


def steps(dim: int, depth: int, context: int, batch: int) -> None:
    """A process that trains ten steps on request and prints the milliseconds of one."""
    step = training(dim, depth, context, batch, precisions()[-1])
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(10):
            step()
        print(1e2 * (time.perf_counter() - began), flush=True)


TABLES = {"loss": loss, "lines": lines, "slices": slices, "spin": spin, "widths": widths, "muon": muon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", nargs=4, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        steps(*arguments.step)
        return
    import torch

    from heddle.account import matmul_rate, slowdown

    fp32 = matmul_rate()
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, matmul {fp32 / 1e9:,.0f} GFLOP/s fp32, "
        f"bf16 {1 / slowdown(torch.bfloat16):.2g} times that\n\n"
        "| what | choice | ms, median (min to max) | beside heddle's choice | share of a step |\n|---|---|---|---|---|"
    )
    rows = []
    for name in arguments.only:
        for row in TABLES[name](arguments.rounds):
            rows.append(row)
            spread = f"{row['milliseconds']:.2f} ({row['fastest']:.2f} to {row['slowest']:.2f})"
            mark = "**" if row["chosen"] else ""
            share = f"{row['share']:.1%}" if "share" in row else ""
            print(
                f"| {row['what']} | {mark}{row['choice']}{mark} | {spread} | {row['ratio']:.3f} | {share} |", flush=True
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"fp32_flops": fp32, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
