"""What looking inside takes: memory of a long text's attention, and the time and operations of a pass that is traced.

    python -m benchmarks.look [--tokens 32768] [--rounds 9] [--json FILE]

Memory is that of a process of its own, which recomputes all weights of one layer and compares them with the kernel's output: how
much its peak grows beyond that of the plain pass. Time is that of a traced pass as a ratio to a plain one, interleaved.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.config import TransformerConfig, preset
from heddle.look import trace
from heddle.model import build


class Operations(TorchDispatchMode):
    """The names of the operations that torch carries out, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def long_text(tokens: int) -> dict[str, float]:
    """How much the peak grows beyond that of the plain pass, and how far the weights are from the kernel."""
    stack = {"depth": 1, "entry": {"positions": "sinusoidal"}, "block": {"mixer": {"heads": 4}}}
    config = TransformerConfig.of({"vocab_size": 256, "dim": 256, "context": tokens, "decoder": stack})
    torch.manual_seed(0)
    model, ids = build(config).eval(), torch.randint(256, (1, tokens))
    with torch.no_grad():
        model(ids)
    before = peak()
    began = time.perf_counter()
    error = trace(model, ids, attention="*").attention["decoder.0.mixer"].error()
    return {"before": before, "more": peak() - before, "error": error, "seconds": time.perf_counter() - began}


def untouched() -> tuple[int, bool]:
    """How many operations a pass has, and whether they are the same after everything was traced."""
    model, ids = build(preset("laptop-tiny")).eval(), torch.randint(100, (1, 64))
    results = []
    for _ in range(2):
        with torch.no_grad(), Operations() as seen:
            model(ids)
        results.append(seen.names)
        trace(model, ids, "*", attention="*")
    return len(results[0]), results[0] == results[1]


def overhead(rounds: int) -> list[float]:
    """Time of a pass that keeps every residual stream, divided by that of a plain one."""
    model, ids = build(preset("laptop-small")).eval(), torch.randint(100, (4, 256))
    ratios = []
    for number in range(rounds + 1):
        times = []
        for names in ((), "decoder.*.residual_after"):
            began = time.perf_counter()
            with torch.no_grad():
                trace(model, ids, names) if names else model(ids)
            times.append(time.perf_counter() - began)
        if number:
            ratios.append(times[1] / times[0])
    return sorted(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(long_text(options.tokens)))
        return
    command = [sys.executable, "-m", "benchmarks.look", "--alone", "--tokens", str(options.tokens)]
    data = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    count, same = untouched()
    ratios = overhead(options.rounds)
    print(
        f"{options.tokens} tokens, one layer of 4 heads: {data['more']:.0f} MB beyond the plain pass's {data['before']:.0f} MB, "
        f"largest relative difference from the kernel {data['error']:.1e}, {data['seconds']:.0f} s"
    )
    print(
        f"operations of a pass before and after everything was traced: {count}, {'the same' if same else 'DIFFERENT'}"
    )
    middle, low, high = statistics.median(ratios), ratios[0], ratios[-1]
    print(f"a pass that keeps all residual streams: {middle:.2f} ({low:.2f} to {high:.2f}) times a plain one")
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if options.json:
        options.json.write_text(json.dumps({"long": data, "operations": [count, same], "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
