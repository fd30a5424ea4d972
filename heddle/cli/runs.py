"""`heddle runs`."""

from pathlib import Path
from typing import Any

from heddle.cli.say import RUNS, console, document, table
from heddle.errors import HeddleError
from heddle.train.journal import read_lines
from heddle.weights.run import newest_valid, read_config


def runs(folder: Path = RUNS, /, *, json: bool = False) -> None:
    """List the runs here.

    Parameters
    ----------
    folder
        Where to look.
    json
        One JSON document on stdout.
    """
    rows = [_row(path) for path in sorted(folder.glob("*")) if (path / "config.json").is_file()]
    if json:
        document(rows)
    elif not rows:
        console().print(f"no runs in {folder}; `heddle train` makes one", markup=False)
    else:
        columns = ["run", "state", "step", "steps", "validation_loss", "bits_per_byte", "depth", "dim", "context"]
        console().print(table(columns, [[row[column] for column in columns] for row in rows]))


def _row(path: Path) -> dict[str, Any]:
    try:
        config = read_config(path)
        lines = read_lines(path / "metrics.jsonl")
    except (HeddleError, ValueError) as error:
        return {"run": str(path), "state": "damaged", "error": str(error)} | dict.fromkeys(
            ("step", "steps", "validation_loss", "bits_per_byte", "depth", "dim", "context")
        )
    scored = next((line for line in reversed(lines) if "validation_loss" in line), {})
    steps = config.chosen.steps if config.chosen else None
    finished = (path / "model.safetensors").is_file()
    checkpoint = None if finished else newest_valid(path)[0]
    state = "finished" if finished and steps else "imported" if finished else "stopped" if checkpoint else "begun"
    return {
        "run": str(path),
        "state": state,
        "step": lines[-1]["step"] if lines else None,
        "steps": steps,
        "validation_loss": scored.get("validation_loss"),
        "bits_per_byte": scored.get("bits_per_byte"),
        "depth": config.model.decoder.depth,
        "dim": config.model.dim,
        "context": config.model.context,
    }
