"""What padding the vocabulary from 50,257 to 50,304 saves: the time of the output layer, forward and backward (L0-86).

    python -m benchmarks.vocabulary [--sizes 50240 50257 50304 --rows 4096 --precision bf16 --device cuda] [--json FILE]

Rows of hidden vectors times the table, the loss of the next tokens, and all gradients, as training does it. Times are medians of
passes that take turns; on a CPU they are of the processor, which other programs disturb less. A multiple of 64 fills the tiles of a
matrix product; whether this shows depends on the machine.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any


def passes(size: int, arguments: argparse.Namespace) -> Callable[[], None]:
    """One pass for a vocabulary of `size` ids, from existing vectors to all gradients."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[arguments.precision]
    hidden = torch.randn(arguments.rows, arguments.dim, dtype=kind, device=arguments.device, requires_grad=True)
    table = torch.randn(size, arguments.dim, dtype=kind, device=arguments.device, requires_grad=True)
    targets = torch.randint(50_000, (arguments.rows,), device=arguments.device)

    def go() -> None:
        loss = F.cross_entropy(hidden @ table.T, targets)
        torch.autograd.grad(loss, (hidden, table))
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    return go


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each size."""
    made = {size: passes(size, arguments) for size in arguments.sizes}
    seconds: dict[int, list[float]] = {size: [] for size in made}
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    for turn in range(arguments.rounds + 1):
        for size, go in made.items():
            start = clock()
            go()
            if turn:  # the first pass sets up
                seconds[size].append(clock() - start)
    rows = []
    for size, each in seconds.items():
        times = sorted(1000 * one for one in each)
        rows.append({"size": size, "ms": median(times), "ms_min": times[0], "ms_max": times[-1]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[50_240, 50_257, 50_304])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    rows = measure(arguments)
    print(
        f"\n{arguments.rows} rows of {arguments.dim}, {arguments.precision}, {arguments.device}, {arguments.threads} threads, "
        f"torch {torch.__version__}, median of {arguments.rounds}\n"
    )
    print("| ids | multiple of 64 | ms, median (min to max) |\n|---|---|---|")
    for row in rows:
        whole = "yes" if row["size"] % 64 == 0 else "no"
        print(f"| {row['size']:,} | {whole} | {row['ms']:.1f} ({row['ms_min']:.1f} to {row['ms_max']:.1f}) |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
