"""Save a run on each layout of processes, continue it on each, and compare with the run that saved.

    python -m benchmarks.reshard [SETTING=VALUE ...] [--kills N] [--json FILE]

Layouts are 1, 2 and 4 processes that divide the model, 2 groups of 2, 2 times 2 of which two divide each layer (TP), and pipelines
(PP) of 2 processes, of 2 times 2, and of 2 stages of 2 processes that divide each layer. Each trains a small run of 6 steps, saved
at step 3. From there, each layout continues each of these runs. Losses, validation loss and gradient norms must agree within 1e-5.
On the same layout all of them and the published weights must be equal bit for bit.

With `--kills`, two processes instead train a longer run and are killed N times at random moments of a save. After each kill the
newest checkpoint must be valid and not older than before. The run must end bit for bit like one without kills. Exit code 1:
something is not as it must be.
"""

import argparse
import json
import random
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from heddle.config.base import parse_overrides
from heddle.runs import prepare
from heddle.weights import newest_valid
from tests import running
from tests.parallel.cases import launch
from tests.parallel.resharding import LAYOUTS, losses, on_layout, trained
from tests.parallel.saving import SLOW

CLOSE = 1e-5
SETTINGS: dict[str, Any] = {"steps": 6, "save_every": 3, "evaluate_every": 6, "optimizer": "muon", "ema": 0.5}
SETTINGS |= {"batch": 8, "accumulate": 2}  # for four processes, and the micro-batches of a pipeline


def new_run(folder: Path, settings: dict[str, Any]) -> Path:
    """A small run that has yet to be trained."""
    with pytest.MonkeyPatch.context() as patch:
        running.make_quick(patch)
        config = running.run_config(running.write_corpus(folder), model={"depth": 2}, **{**SETTINGS, **settings})
        prepare(config, folder / "run")
    return folder / "run"


def pairs(folder: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """For each pair of layouts, how far the run that continues is from the one that saved."""
    new = new_run(folder, settings)
    saved = {layout: on_layout(new, folder / f"from {layout}", layout) for layout in LAYOUTS}
    continued = {
        (first, then): folder / f"from {first} on {then}" for first in LAYOUTS for then in LAYOUTS
    }  # fmt: skip
    for layout in LAYOUTS:
        trained(layout, saved[layout])
    for then in LAYOUTS:
        trained(then, *(on_layout(saved[first], continued[first, then], then, 3) for first in LAYOUTS))
    return [
        {"saved": first, "continued": then, **difference(saved[first], run, 3)}
        for (first, then), run in continued.items()
    ]


def kills(folder: Path, settings: dict[str, Any], number: int, draw: random.Random) -> dict[str, Any]:
    """How a run ends that is killed in its saves, and what each kill left."""
    new = new_run(folder, {"steps": 3 * number, "evaluate_every": 3 * number, **settings})
    expected, run = (on_layout(new, folder / name, "2") for name in ("undisturbed", "killed"))
    trained("2", expected)
    steps, bad = [0], 0
    for _ in range(number):
        moment = draw.uniform(0, SLOW)
        with pytest.raises(AssertionError):  # the program fails
            launch(2, "tests.parallel.saving", str(run), f"killed {moment}")
        checkpoint, notes = newest_valid(run)
        steps.append(0 if checkpoint is None else int(checkpoint.name.removeprefix("step-")))
        bad += bool(notes) or steps[-1] - steps[-2] not in (0, 3)
        print(f"killed {moment:.2f} s into a save after step {steps[-2]}: step {steps[-1]} is left", flush=True)
    trained("2", run)
    named = sum(after > before for before, after in pairwise(steps))
    left = [str(path) for path in run.rglob(".*")]
    return {"kills": number, "named": named, "bad": bad, "left": left, **difference(expected, run, 0)}


def difference(run: Path, other: Path, after: int) -> dict[str, Any]:
    """How far apart two runs end: numbers of the steps after one, weights, and whether both are equal bit for bit."""
    one, two = losses(run, after), losses(other)
    assert one.keys() == two.keys(), (run, other)
    gaps = [abs(a - b) for step in one for a, b in zip(one[step], two[step], strict=True)]
    weights = [load_file(each / "model.safetensors") for each in (run, other)]
    apart = max(float((value - weights[1][name]).abs().max()) for name, value in weights[0].items())
    return {"losses": max(gaps), "weights": apart, "equal": one == two and apart == 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="of the training, such as optimizer=adamw")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings, result = parse_overrides(options.settings), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        if options.kills:
            result = [kills(Path(folder), settings, options.kills, random.Random(0))]
            holds = report_kills(result[0])
        else:
            result = pairs(Path(folder), settings)
            holds = report_pairs(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(0 if holds else 1)


def report_kills(result: dict[str, Any]) -> bool:
    """Print how a killed run ended; whether that is right."""
    print(
        f"{result['kills']} kills, {result['named']} after the checkpoint had its name; {result['bad']} left no valid one; "
        f"{'equal to the run without kills' if result['equal'] else 'DIFFERENT'}; left: {result['left'] or 'nothing'}"
    )
    return not result["bad"] and not result["left"] and bool(result["equal"])


def report_pairs(rows: list[dict[str, Any]]) -> bool:
    """Print how far apart pairs are; whether all are as they must be."""
    print("saved   continued   losses   weights  equal")
    for row in rows:
        numbers = f"{row['losses']:8.1e}  {row['weights']:8.1e}"
        print(f"{row['saved']:6}  {row['continued']:9} {numbers}  {'yes' if row['equal'] else 'no'}")
    right = [row["losses"] <= CLOSE and (row["equal"] or row["saved"] != row["continued"]) for row in rows]
    print(f"{sum(right)} of {len(rows)} pairs as they must be")
    return all(right)


if __name__ == "__main__":
    main()
