"""A program for several ranks: trains runs one after another, `resharding.py RUN...`; and the runs for it."""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from heddle.config.parallel import ParallelConfig
from heddle.prove.kills import MinimalTrainer
from heddle.runs.journal import read_lines
from heddle.weights.run import read_config
from tests.parallel.cases import launch

# Processes, and how they divide the model: into parts (FSDP) in all, in each of two groups, of two parts of each layer (TP), and of
# two parts of the layers (PP).
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "1": (1, {}),
    "2": (2, {}),
    "4": (4, {}),
    "2x2": (4, {"replicate": 2}),
    "2x2 TP": (4, {"tensor": 2}),
    "2 PP": (2, {"pipeline": 2}),
    "2x2 PP": (4, {"pipeline": 2}),
    "2x2 PP TP": (4, {"pipeline": 2, "tensor": 2}),
}


def on_layout(run: Path, place: Path, layout: str, step: int = 0) -> Path:
    """A copy of a run for another layout, with its checkpoint of a step alone."""
    copy = shutil.copytree(
        run, place, ignore=shutil.ignore_patterns("checkpoints", "model.safetensors", "manifest.json")
    )
    (copy / "metrics.jsonl").unlink(missing_ok=True)
    if step:
        shutil.copytree(run / f"checkpoints/step-{step}", copy / f"checkpoints/step-{step}")
    config = read_config(run)
    changed = config.model_copy(update={"parallel": ParallelConfig.of(LAYOUTS[layout][1])})
    (copy / "config.json").write_text(changed.to_json(), encoding="utf-8")
    return copy


def losses(run: Path, after: int = 0) -> dict[int, list[float]]:
    """The losses that a run's steps report."""
    rows: list[Any] = read_lines(run / "metrics.jsonl")
    names = ("loss", "validation_loss", "gradient_norm")
    return {row["step"]: [row[name] for name in names if name in row] for row in rows if row["step"] > after}


def trained(layout: str, *runs: Path) -> None:
    """Train runs on a layout, one after another."""
    launch(LAYOUTS[layout][0], "tests.parallel.resharding", *map(str, runs))


def main(*runs: str) -> None:
    torch.set_num_threads(1)
    for run in runs:
        MinimalTrainer(run).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
