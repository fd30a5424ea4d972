"""Train every case of `tests/parallel/cases.py` on 2 and 4 processes, and print how far each is from one process as Markdown.

python -m tests.parallel.full [--only WORD]

Without `--only`, all divided tables of `vocabulary.py` and all starts of `starts.py` follow.
"""

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from tests.parallel import cases, starts

STEPS = 5


def main(only: str) -> int:
    torch.set_num_threads(1)
    failed = trainings(only)
    if not only:
        with tempfile.TemporaryDirectory() as folder:
            runs = starts.prepared(Path(folder))
            for processes in cases.ALL:
                failed += tables(processes, Path(folder))
                (place := Path(folder) / f"on {processes}").mkdir()
                starts.check(processes, starts.ALL[processes], runs, place)
                print(
                    f"{processes} processes: {len(starts.ALL[processes])} starts are those of one process", flush=True
                )
    return 1 if failed else 0


def tables(processes: int, folder: Path) -> int:
    """How many divided tables are too far from whole ones."""
    cases.launch(processes, "tests.parallel.vocabulary", str(folder), "all")
    gaps = json.loads((folder / "gaps.json").read_text())
    print(f"{processes} processes: {len(gaps)} divided tables, within {max(gaps.values()):.1e}", flush=True)
    return sum(not gap <= cases.TABLES for gap in gaps.values())


def trainings(only: str) -> int:
    """How many trainings are too far from those of one process."""
    failed = 0
    print("| processes | mesh | precision | cases | loss | norm | weights | score |")
    print("|---|---|---|---|---|---|---|---|")
    for processes, every in cases.ALL.items():
        groups = defaultdict(list)
        for each in every:
            if only in str(each):
                mesh = ", ".join(f"{name} = {value}" for name, value in each["mesh"].items()) or "shard"
                longer = {**each, "train": {**each["train"], "steps": STEPS}}
                groups[mesh, each["precision"]].append(longer)
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
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--only"] else ""))
