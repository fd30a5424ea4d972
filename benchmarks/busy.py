"""Measures what another program costs: training and decoding on a quiet machine and with one core taken, in turns.

    python -m benchmarks.busy [--core 1 --rounds 5 --seconds 2] [--json FILE]

The other program counts for ever on one core. Each round measures both with it and without it: as `heddle` computes, where threads
follow the load (`heddle.native.cores`), and without following it (fixed). On the quiet machine the two take turns call by call: a
host's own ups and downs are larger than what is compared. The table has the median rates of the rounds, and medians of the rounds'
ratios with their spread. Nothing else should run. Only precisions whose products are not slower than in fp32 are measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    from benchmarks.choices import training
    from heddle import build, sized
    from heddle.config import SamplingConfig
    from heddle.generate import generate
    from heddle.model.precision import cast

    def decode(model: Any) -> object:
        return list(generate(model, [[1, 2, 3, 4]], SamplingConfig(max_tokens=32, temperature=0)))

    repeated: dict[str, Callable[[], object]] = {}
    for precision in precisions:
        for dim, depth, context, batch in ((128, 4, 64, 12), (128, 2, 256, 16)):
            step = training(dim, depth, context, batch, precision)
            repeated[f"training, {depth} x {dim}, {batch} x {context} tokens, {precision}"] = step
        model = cast(build(sized(4, vocab_size=8192, context=256, dim=512)).eval(), precision)
        repeated[f"decoding, 4 x 512, {precision}"] = partial(decode, model)
    return repeated


def rates(work: Callable[[], object], seconds: float, ways: tuple[bool, ...]) -> list[float]:
    """How often it is done per second in each of these ways, in turns, call by call: following the load, or not.

    The load may just have changed: a second passes first.
    """
    from heddle.native.cores import share_cores

    def repeat(seconds: float) -> list[float]:
        begin, times = time.perf_counter(), [list[float]() for _ in ways]
        while not all(times) or time.perf_counter() - begin < seconds:
            first = len(times[0]) % len(ways)
            for way in (*range(first, len(ways)), *range(first)):
                with nullcontext() if ways[way] else fixed():
                    start = time.perf_counter()
                    share_cores()
                    work()
                    times[way].append(time.perf_counter() - start)
        return [1 / median(each) for each in times]

    repeat(1.0)
    return repeat(seconds)


@contextmanager
def fixed() -> Iterator[None]:
    """While this holds, threads do not follow the load; decoding follows it of its own, between tokens."""
    from heddle.native.cores import Waiting

    follow = Waiting.follow
    Waiting.follow = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Waiting.follow = follow  # type: ignore[method-assign]


@contextmanager
def another(core: int) -> Iterator[None]:
    """While this holds, another program counts on this core."""
    command = [sys.executable, "-c", PROGRAM]
    program = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    try:
        yield
    finally:
        program.kill()
        program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    from heddle.account import slowdown
    from heddle.native.cores import waiting

    precisions = ["fp32"] + (["bf16"] if slowdown(torch.bfloat16) < 1 else [])
    todo = works(precisions)
    columns = ("quiet", "quiet, fixed", "busy", "busy, fixed")
    measured: dict[str, dict[str, list[float]]] = {name: {column: [] for column in columns} for name in todo}
    for _ in range(arguments.rounds):
        for name, work in todo.items():
            both = rates(work, 2 * arguments.seconds, (True, False))
            with another(arguments.core):
                both += rates(work, arguments.seconds, (True,))
                waiting().reset()
                both += rates(work, arguments.seconds, (False,))
            for column, value in zip(columns, both, strict=True):
                measured[name][column].append(value)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {', '.join(precisions)}\n")
    ratios = (("quiet", "quiet, fixed"), ("busy", "quiet"), ("busy, fixed", "quiet, fixed"))
    titles = ["what", *columns, *(f"{a} / {b}" for a, b in ratios)]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    rows: list[dict[str, Any]] = []
    for name, each in measured.items():
        shares = {f"{a} / {b}": [one / other for one, other in zip(each[a], each[b], strict=True)] for a, b in ratios}
        rows.append({"what": name, **each, **shares})
        words = [f"{median(some):.2f}" for some in each.values()]
        words += [f"{median(some):.2f} ({min(some):.2f} to {max(some):.2f})" for some in shares.values()]
        print(f"| {name} | {' | '.join(words)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
