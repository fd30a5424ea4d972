"""`heddle runs`."""

from pathlib import Path
from typing import Any

from heddle.cli.say import RUNS, console, document, table
from heddle.config.saved import SavedConfig
from heddle.data.store import TokenStore
from heddle.errors import HeddleError
from heddle.train.journal import read_lines
from heddle.weights.checkpoints import read_manifest
from heddle.weights.files import is_held
from heddle.weights.run import damage, newest_valid, read_config

SCORES = ("validation_loss", "validation_error", "bits_per_byte")
COLUMNS = ("run", "state", "step", "steps", *SCORES, "scored", "depth", "dim", "context")


def runs(folder: Path = RUNS, /, *, json: bool = False) -> None:
    """List the runs here.

    A finished run shows its final scores: "scored" is the share of the held-out text that they cover, and "validation_error"
    their standard error as an estimate for all of it, which `heddle eval` computes. An unfinished run shows its last
    estimate, over a small sample.

    Parameters
    ----------
    folder
        The directory with the runs.
    json
        One JSON document on stdout.
    """
    rows = [_row(path) for path in sorted(folder.glob("[!.]*")) if (path / "config.json").is_file()]
    if json:
        document(rows)
    elif not rows:
        console().print(f"no runs in {folder}; `heddle train` creates one", markup=False)
    else:
        out = console()
        out.print(table(COLUMNS, [[row[column] for column in COLUMNS] for row in rows]))
        for row in rows:
            if "error" in row:
                out.print(row["error"], markup=False)


def _row(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"run": str(path), "state": "damaged"} | dict.fromkeys(COLUMNS[2:])
    try:
        config = read_config(path)
        lines = read_lines(path / "metrics.jsonl")
        row |= {"depth": config.model.last()[1].depth, "dim": config.model.dim, "context": config.model.context}
        row |= {"step": lines[-1]["step"] if lines else None, "steps": config.chosen.steps if config.chosen else None}
        wrong = damage(path, hashes=False)
        if wrong:
            raise HeddleError(f"{path / wrong[0]}")
        if (path / "data").is_dir():
            TokenStore.open(path / "data")  # refuses what is damaged
        return row | {"state": _state(path, config)} | _scores(path, lines)
    except (HeddleError, ValueError) as error:
        return row | {"error": str(error)}


def _state(path: Path, config: SavedConfig) -> str:
    if config.chosen and is_held(path):
        return "training"
    if (path / "model.safetensors").is_file():
        return "finished" if config.chosen else "imported" if config.origin else "saved"
    return "stopped" if newest_valid(path)[0] else "begun"


def _scores(path: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The final scores if training has finished, else the last estimate, with how much text they cover."""
    ended = read_manifest(path).get("evaluation") if (path / "manifest.json").is_file() else None
    last = next((line for line in reversed(lines) if "validation_loss" in line), None)
    if ended:
        loss, bits, error = ended["loss"], ended.get("bits_per_byte"), ended["standard_error"]
        scored = "all" if ended["share"] == 1 else f"{ended['share']:.0%}, of it"
    elif last:
        loss, bits, error = last["validation_loss"], last.get("bits_per_byte"), last["validation_error"]
        scored = "an estimate"
    else:
        return {}
    return {"validation_loss": loss, "validation_error": error, "bits_per_byte": bits, "scored": scored}
