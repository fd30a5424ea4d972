"""Memory and time of the attention kernels, forward and backward, at lengths that double.

    python benchmarks/attention.py [--kernels reference plain blockwise sdpa --lengths 512 1024 --device cpu] [--json FILE]

Causal attention of one row. Memory is the peak that a pass allocates beyond its inputs: outputs, gradients and everything
between, counting every allocation (with torch's profiler or CUDA's allocator), so that it is exact. Times are medians of passes
that take turns, without the profiler.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any


def passes(arguments: argparse.Namespace, name: str, length: int) -> Callable[[], None]:
    """One forward and backward pass of a kernel, from existing inputs to their gradients."""
    import torch

    from heddle.nn.kernels import KERNELS
    from heddle.nn.layout import Layout
    from heddle.nn.mask import Causal, Mask

    torch.manual_seed(0)
    shape = (1, arguments.heads, length, arguments.head_dim)
    kind = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[arguments.precision])
    q, k, v, above = (torch.randn(shape, dtype=kind, device=arguments.device) for _ in range(4))
    kernel = KERNELS[name](arguments.head_dim**-0.5)
    layout = Layout.whole(1, length, arguments.device)
    lowered = kernel.lower(Mask(Causal(), layout, layout))
    for tensor in (q, k, v):
        tensor.requires_grad_()

    def go() -> None:
        out = kernel(q, k, v, lowered)
        torch.autograd.grad(out, (q, k, v), above)
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    return go


def peak(go: Callable[[], Any], device: str) -> int:
    """The peak of the bytes that `go` allocated."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        go()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        go()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kernel and length."""
    rows: list[dict[str, Any]] = []
    for length in arguments.lengths:
        made = {name: passes(arguments, name, length) for name in arguments.kernels}
        bytes_held: dict[str, int] = {}
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for name, go in made.items():
            go()
            bytes_held[name] = peak(go, arguments.device)
        for _ in range(arguments.rounds):
            for name, go in made.items():
                start = time.perf_counter()
                go()
                seconds[name].append(time.perf_counter() - start)
        for name in made:
            before = next((row for row in rows if row["kernel"] == name and row["length"] * 2 == length), None)
            times = sorted(1000 * each for each in seconds[name])
            rows.append(
                {
                    "kernel": name,
                    "length": length,
                    "bytes": bytes_held[name],
                    "times_half": None if before is None else bytes_held[name] / before["bytes"],
                    "ms": median(times),
                    "ms_min": times[0],
                    "ms_max": times[-1],
                }
            )
    return sorted(rows, key=lambda row: (arguments.kernels.index(row["kernel"]), row["length"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=["reference", "plain", "blockwise", "sdpa"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    rows = measure(arguments)
    print(
        f"\ncausal attention, {arguments.heads} heads of {arguments.head_dim}, {arguments.precision}, forward and backward, "
        f"{arguments.device}, {arguments.threads} threads, torch {torch.__version__}, median of {arguments.rounds}\n"
    )
    print("| kernel | length | MiB beyond the inputs | times half the length's | ms, median (min to max) |")
    print("|---|---|---|---|---|")
    for row in rows:
        ratio = "" if row["times_half"] is None else f"{row['times_half']:.2f}"
        spread = f"{row['ms']:.1f} ({row['ms_min']:.1f} to {row['ms_max']:.1f})"
        print(f"| {row['kernel']} | {row['length']:,} | {row['bytes'] / 2**20:,.1f} | {ratio} | {spread} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
