"""Train every case of `tests/parallel/cases.py` on 2 and 4 processes, and print how far each is from one process as Markdown.

python -m tests.parallel.full [--only WORD]
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from tests.parallel import cases


def main(only: str) -> int:
    torch.set_num_threads(1)
    failed = 0
    print("| processes | mesh | precision | cases | loss | norm | weights | score |")
    print("|---|---|---|---|---|---|---|---|")
    for processes, every in cases.ALL.items():
        groups = defaultdict(list)
        for each in every:
            if only in str(each):
                mesh = ", ".join(f"{name} = {value}" for name, value in each["mesh"].items()) or "shard"
                groups[mesh, each["precision"]].append(each)
        for (mesh, precision), group in groups.items():
            with tempfile.TemporaryDirectory() as folder:
                gaps = cases.gaps(processes, group, Path(folder))
            worst = [max(getattr(gap, name) for gap in gaps) for name in ("loss", "norm", "weight", "score")]
            figures = " | ".join(f"{value:.1e}" for value in worst)
            print(f"| {processes} | {mesh} | {precision} | {len(group)} | {figures} |", flush=True)
            for each, gap in zip(group, gaps, strict=True):
                if gap.problem:
                    failed += 1
                    print(f"{each}: {gap.problem}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--only"] else ""))
