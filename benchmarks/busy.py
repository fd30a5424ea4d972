"""Measures what another program costs: training and decoding on a quiet machine and with one core taken, in turns.

    python benchmarks/busy.py [--core 1 --rounds 5 --seconds 2] [--json FILE]

The other program counts for ever on one core. Each round measures both with it and without it; the table has the median rate of the
rounds and their spread, and busy rates as shares of the quiet ones. Threads follow the load by `heddle.model.cores`; `--fixed`
measures without that. Nothing else should run. Only precisions whose products are not slower than in fp32 are measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# As `heddle` sets them, before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

PROGRAM = "while True: pass"


def works(precisions: list[str]) -> dict[str, Callable[[], object]]:
    """What is repeated: a training step, and a text of 32 tokens."""
    from choices import training

    from heddle import build, sized
    from heddle.config import SamplingConfig
    from heddle.generate import generate
    from heddle.model.precision import cast

    def decode(model: Any) -> object:
        return list(generate(model, [[1, 2, 3, 4]], SamplingConfig(max_tokens=32, temperature=0)))

    found: dict[str, Callable[[], object]] = {}
    for precision in precisions:
        for dim, depth, context, batch in ((128, 4, 64, 12), (128, 2, 256, 16)):
            step = training(dim, depth, context, batch, precision)
            found[f"training, {depth} x {dim}, {batch} x {context} tokens, {precision}"] = step
        model = cast(build(sized(4, vocab_size=8192, context=256, dim=512)).eval(), precision)
        found[f"decoding, 4 x 512, {precision}"] = partial(decode, model)
    return found


def rate(work: Callable[[], object], seconds: float) -> float:
    """How often it is done per second, after a second to notice a load that has changed."""
    from heddle.model.cores import share_cores

    def repeat(seconds: float) -> float:
        begin, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < seconds:
            share_cores()
            work()
            count += 1
        return count / (time.perf_counter() - begin)

    repeat(1.0)
    return repeat(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--fixed", action="store_true", help="without following the load")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    from heddle.account import slowdown
    from heddle.model import cores

    if arguments.fixed:
        cores.Waiting.follow = lambda self: None  # type: ignore[method-assign]
    precisions = ["fp32"] + (["bf16"] if slowdown(torch.bfloat16) < 1 else [])
    rates: dict[str, dict[str, list[float]]] = {}
    todo = works(precisions)
    for _ in range(arguments.rounds):
        for name, work in todo.items():
            each = rates.setdefault(name, {"quiet": [], "busy": []})
            each["quiet"].append(rate(work, arguments.seconds))
            command = [sys.executable, "-c", PROGRAM]
            other = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {arguments.core}))
            try:
                each["busy"].append(rate(work, arguments.seconds))
            finally:
                other.kill()
                other.wait()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {', '.join(precisions)}\n")
    print("| what | quiet, per second (spread) | busy, per second (spread) | busy/quiet |\n|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for name, each in rates.items():
        shares = [b / a for a, b in zip(each["quiet"], each["busy"], strict=True)]
        rows.append({"what": name, **each, "share": median(shares), "least": min(shares), "most": max(shares)})
        words = [f"{median(some):.2f} ({min(some):.2f} to {max(some):.2f})" for some in (*each.values(), shares)]
        print(f"| {name} | {' | '.join(words)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
