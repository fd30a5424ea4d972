"""Training speed beside transformers: GPT-2, equal work, one interleaved run.

    python benchmarks/training.py [--preset gpt2-small --batch 2 --context 512 --rounds 5 --device cpu] [--json FILE]

Every contender is a process of its own, so that peak memory is its own. All start from the same weights and train on the
same tokens, with the same threads, allocator settings, AdamW (fused, fp32 state and fp32 weights), clipping, and no dropout.
They take turns: a few steps each, round after round, while the others wait. Before the timing each trains the same 20 batches,
and the losses have to agree with those of transformers in fp32 to 1e-2.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

CONTENDERS = {
    "transformers fp32": {"library": "transformers", "precision": "fp32", "compile": False},
    "transformers fp32 compiled": {"library": "transformers", "precision": "fp32", "compile": True},
    "transformers bf16 autocast": {"library": "transformers", "precision": "bf16", "compile": False},
    "transformers bf16 autocast compiled": {"library": "transformers", "precision": "bf16", "compile": True},
    "heddle fp32": {"library": "heddle", "precision": "fp32", "compile": False},
    "heddle bf16": {"library": "heddle", "precision": "bf16", "compile": False},
    "heddle bf16 compiled": {"library": "heddle", "precision": "bf16", "compile": True},
}
AGREE = 1e-2
CHECK_STEPS = 20
RATE, DECAY, BETAS, EPS, CLIP = 3e-4, 0.1, (0.9, 0.95), 1e-10, 1.0


def batches(vocabulary: int, batch: int, context: int, seed: int) -> Any:
    """The same tokens for everyone: a text-like stream (frequent ids are frequent), one batch per seed."""
    import numpy as np

    draws = np.random.default_rng(seed).zipf(1.3, (batch, context + 1))
    return (draws - 1) % vocabulary


def heddle_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Any], float]:
    """One training step of heddle, as `heddle train` runs it."""
    import torch

    from heddle.config import TrainConfig
    from heddle.data import next_token_batch
    from heddle.train import NextToken, Optimizer, train_step
    from heddle.weights import load

    model, _ = load(weights, arguments.device)
    config = TrainConfig(optimizer="adamw", weight_decay=DECAY, betas=BETAS)
    optimizer = Optimizer(model.train(), config, RATE, arguments.precision)
    objective = torch.compile(NextToken(model)) if arguments.compile else NextToken(model)

    def step(ids: Any) -> float:
        batch = next_token_batch(ids).to(arguments.device)
        return train_step(objective, optimizer, batch, 1, 1.0, CLIP)[0]

    return step


def transformers_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Any], float]:
    """One training step of transformers' GPT-2, with its fastest attention, in a plain torch loop."""
    import torch
    from torch.nn import functional as F
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="sdpa")
    model = model.to(arguments.device).train()
    model.config.use_cache = False
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)
    forward = torch.compile(model) if arguments.compile else model

    def step(ids: Any) -> float:
        ids = torch.from_numpy(ids).to(arguments.device)
        with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.precision == "bf16"):
            logits = forward(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def contender(arguments: argparse.Namespace) -> None:
    """A process that trains when it is told to: lines of JSON in, lines of JSON out."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    import torch

    from heddle.account import matmul_rate
    from heddle.train.runtime import keep_memory

    torch.set_num_threads(arguments.threads)
    keep_memory()
    if arguments.library == "peak":
        rates = {"bf16": torch.bfloat16, "fp32": torch.float32}
        step = None
    else:
        make = heddle_step if arguments.library == "heddle" else transformers_step
        step = make(arguments, Path(arguments.weights))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        if step is None:
            answer: dict[str, Any] = {name: matmul_rate(kind, device=arguments.device) for name, kind in rates.items()}
        else:
            losses, seconds = [], []
            for seed in wanted["seeds"]:
                ids = batches(arguments.vocabulary, arguments.batch, arguments.context, seed)
                began = time.perf_counter()
                losses.append(step(ids))
                if arguments.device == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
            answer = {"losses": losses, "seconds": seconds, "memory": peak_memory(arguments.device)}
            give_back()
        print(json.dumps(answer), flush=True)


def peak_memory(device: str) -> int:
    """The most this process has held, in bytes."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back() -> None:
    """Return freed memory while others have their turn; six models would not fit otherwise."""
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


class Process:
    """A contender seen from outside."""

    def __init__(
        self, arguments: argparse.Namespace, weights: Path, library: str, precision: str, compile: bool
    ) -> None:
        words = [sys.executable, __file__, "--contender", "--library", library, "--precision", precision]
        words += ["--weights", str(weights), "--threads", str(arguments.threads), "--device", arguments.device]
        words += ["--batch", str(arguments.batch), "--context", str(arguments.context)]
        words += ["--vocabulary", str(arguments.vocabulary)] + (["--compile"] if compile else [])
        # Waiting threads must not spin while another contender has the cores.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender died: {' '.join(self.process.args[2:8])}")
        return json.loads(line)

    def ask(self, **wanted: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def prepare_weights(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """One set of initial weights, as a run and as a directory of transformers."""
    import heddle
    from heddle.weights import export_model, save

    model = heddle.build(heddle.preset(arguments.preset), seed=1)
    arguments.vocabulary = model.vocab_size
    save(model, folder / "heddle")
    export_model(folder / "heddle", folder / "transformers")
    return {"heddle": folder / "heddle", "transformers": folder / "transformers"}


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check that all compute the same thing, then time them in turns."""
    with tempfile.TemporaryDirectory() as folder:
        weights = prepare_weights(arguments, Path(folder))
        chosen = {name: how for name, how in CONTENDERS.items() if not arguments.only or name in arguments.only}
        running, losses = {}, {}
        for name, how in chosen.items():
            print(f"{name}: {CHECK_STEPS} steps to compare losses", file=sys.stderr)
            running[name] = Process(arguments, weights[how["library"]], **how)
            losses[name] = running[name].ask(seeds=list(range(CHECK_STEPS)))["losses"]
        ceiling = Process(arguments, Path(folder), "peak", "fp32", False)
        seconds: dict[str, list[float]] = {name: [] for name in running}
        memory, peaks = {}, []
        for number in range(arguments.rounds):
            peaks.append(ceiling.ask())
            for name, process in running.items():
                seeds = [1000 + number * arguments.steps + i for i in range(arguments.steps)]
                answer = process.ask(seeds=seeds)
                seconds[name] += answer["seconds"]
                memory[name] = answer["memory"]
                print(f"round {number + 1}: {name} {median(answer['seconds']):.3f} s", file=sys.stderr)
        for process in [*running.values(), ceiling]:
            process.close()
    return report(arguments, losses, seconds, memory, peaks)


def report(
    arguments: argparse.Namespace,
    losses: dict[str, list[float]],
    seconds: dict[str, list[float]],
    memory: dict[str, int],
    peaks: list[dict[str, float]],
) -> dict[str, Any]:
    """The numbers, with the verdicts that were asked for."""
    import torch

    import heddle
    from heddle.account import flops

    peak = {name: median(each[name] for each in peaks) for name in peaks[0]}
    config = heddle.preset(arguments.preset)
    work = flops(config, arguments.batch, arguments.context).training
    tokens = arguments.batch * arguments.context
    # Two precisions part ways within 20 steps whoever computes them; who is compared must round alike.
    references = {precision: _reference(losses, precision) for precision in ("fp32", "bf16")}
    rows = []
    for name, times in seconds.items():
        reference = references[CONTENDERS[name]["precision"]]
        middle = median(times)
        rows.append(
            {
                "contender": name,
                "seconds": middle,
                "fastest": min(times),
                "slowest": max(times),
                "tokens_per_second": tokens / middle,
                "share_of_peak": work / middle / peak[CONTENDERS[name]["precision"]],
                "peak_memory": memory[name],
                "loss_difference": max(abs(a - b) for a, b in zip(losses[name], reference, strict=True)),
                "last_loss": losses[name][-1],
            }
        )
    theirs = [row for row in rows if row["contender"].startswith("transformers")]
    ours = [row for row in rows if row["contender"].startswith("heddle")]
    result: dict[str, Any] = {
        "preset": arguments.preset,
        "batch": arguments.batch,
        "context": arguments.context,
        "threads": arguments.threads,
        "device": arguments.device,
        "steps": arguments.rounds * arguments.steps,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "peak": peak,
        "contenders": rows,
        "losses_agree": all(row["loss_difference"] <= AGREE for row in rows),
    }
    if theirs and ours:
        best = min(theirs, key=lambda row: row["seconds"])
        result |= {"best_of_transformers": best["contender"],
                   "ratio": best["seconds"] / min(row["seconds"] for row in ours)}  # fmt: skip
    return result


def _reference(losses: dict[str, list[float]], precision: str) -> list[float]:
    """The losses of transformers, not compiled, in a precision; of the first contender there is without it."""
    plain = {"fp32": "transformers fp32", "bf16": "transformers bf16 autocast"}[precision]
    alike = [found for name, found in losses.items() if CONTENDERS[name]["precision"] == precision]
    return losses.get(plain) or next(iter(alike), [])


def show(result: dict[str, Any]) -> None:
    """The same as a table."""
    peak = {name: f"{rate / 1e9:,.0f} GFLOP/s" for name, rate in result["peak"].items()}
    print(
        f"{result['preset']}, {result['batch']} x {result['context']} tokens, {result['threads']} threads, "
        f"{result['device']}, torch {result['torch']}; measured matmul peak {peak['bf16']} bf16, {peak['fp32']} fp32\n"
    )
    print("| contender | s/step, median (min to max) | tokens/s | share of peak | peak memory | loss off by |")
    print("|---|---|---|---|---|---|")
    for row in result["contenders"]:
        spread = f"{row['seconds']:.3f} ({row['fastest']:.3f} to {row['slowest']:.3f})"
        speed = f"{row['tokens_per_second']:,.0f} | {row['share_of_peak']:.0%}"
        memory = f"{row['peak_memory'] / 2**20:,.0f} MiB"
        print(f"| {row['contender']} | {spread} | {speed} | {memory} | {row['loss_difference']:.1e} |")
    print(f"\nLosses agree to {AGREE:g} over {CHECK_STEPS} steps: {'yes' if result['losses_agree'] else 'NO'}.")
    if "ratio" in result:
        best = result["best_of_transformers"]
        print(f"heddle trains {result['ratio']:.2f} times as fast as the best of transformers ({best}).")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="gpt2-small")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contender in a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--json", type=Path)
    for name in ("--library", "--precision", "--weights"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--contender", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(arguments)
        return
    result = race(arguments)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
