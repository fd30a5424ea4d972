"""Save a run on each layout of processes, continue it on each, and compare with the run that saved.

    python -m benchmarks.reshard [SETTING=VALUE ...] [--json FILE]

Layouts are 1, 2 and 4 processes that divide the model, and 2 groups of 2. Each trains a small run of 6 steps and saves at step 3.
From there, each layout continues each of these runs: losses, validation loss and gradient norms must agree within 1e-5, and on the
same layout all of them and the published weights must be equal bit for bit. Exit code 1: they do not.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from heddle.config.base import parse_overrides
from heddle.runs import prepare
from tests import running
from tests.parallel.resharding import LAYOUTS, losses, on_layout, trained

CLOSE = 1e-5
SETTINGS: dict[str, Any] = {"steps": 6, "save_every": 3, "evaluate_every": 6, "optimizer": "muon", "ema": 0.5}


def pairs(folder: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """For each pair of layouts, how far the run that continues is from the one that saved."""
    with pytest.MonkeyPatch.context() as patch:
        running.make_quick(patch)
        prepare(running.run_config(running.write_corpus(folder), **{**SETTINGS, **settings}), folder / "run")
    saved = {layout: on_layout(folder / "run", folder / f"from {layout}", layout) for layout in LAYOUTS}
    continued = {
        (first, then): folder / f"from {first} on {then}" for first in LAYOUTS for then in LAYOUTS
    }  # fmt: skip
    for layout in LAYOUTS:
        trained(layout, saved[layout])
    for then in LAYOUTS:
        trained(then, *(on_layout(saved[first], continued[first, then], then, 3) for first in LAYOUTS))
    return [
        {"saved": first, "continued": then, **difference(saved[first], run)} for (first, then), run in continued.items()
    ]


def difference(run: Path, other: Path) -> dict[str, Any]:
    """How far apart two runs end: numbers of the steps after the third, weights, and whether both are equal bit for bit."""
    one, two = losses(run, after=3), losses(other)
    assert one.keys() == two.keys(), (run, other)
    gaps = [abs(a - b) for step in one for a, b in zip(one[step], two[step], strict=True)]
    weights = [load_file(each / "model.safetensors") for each in (run, other)]
    apart = max(float((value - weights[1][name]).abs().max()) for name, value in weights[0].items())
    return {"losses": max(gaps), "weights": apart, "equal": one == two and apart == 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="of the training, such as optimizer=adamw")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = pairs(Path(folder), parse_overrides(options.settings))
    print("saved  continued   losses   weights  equal")
    for row in rows:
        numbers = f"{row['losses']:8.1e}  {row['weights']:8.1e}"
        print(f"{row['saved']:5}  {row['continued']:9} {numbers}  {'yes' if row['equal'] else 'no'}")
    right = [row["losses"] <= CLOSE and (row["equal"] or row["saved"] != row["continued"]) for row in rows]
    print(f"{sum(right)} of {len(rows)} pairs as they must be")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
