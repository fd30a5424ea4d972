"""Runs side by side: one record per run, and the settings in which they differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.config.saved import SavedConfig
from heddle.data.record_store import open_store
from heddle.errors import HeddleError
from heddle.runs.journal import read_lines, read_speed
from heddle.weights.checkpoints import CONFIG, read_manifest
from heddle.weights.files import MANIFEST, is_held
from heddle.weights.run import damage, newest_valid, read_config

METRICS = "metrics.jsonl"
FIELDS = (
    *("run", "state", "step", "steps", "validation_loss", "validation_error", "bits_per_byte", "metrics", "scored"),
    *("best_loss", "best_error", "best_step", "tokens_per_second", "seconds", "depth", "dim", "context"),
)
# What every evaluation has; the rest are the task's metrics.
SCORE = ("loss", "standard_error", "validation_loss", "validation_error", "share")
# Measured on the machine, not chosen by anyone.
MEASURED = ("peak", "tokens_per_second", "onednn", "vectors")


@checked()
def compare_runs(runs: Sequence[str | Path]) -> list[dict[str, Any]]:
    """One record per run, as JSON-ready data; a run that cannot be read has its `error`, and the fields that could be read.

    `validation_loss` is the final score if training has finished, else the last estimate; `best_loss` is the lowest estimate
    during training, at `best_step`. Losses are in nats per target, with their standard errors; `metrics` has what the task
    measures beside them, such as accuracy. `tokens_per_second` and `seconds` are those of the training steps. `differs` has the
    settings in which the runs differ.
    """
    records = [_record(Path(run)) for run in runs]
    settings = [record.pop("settings") for record in records]
    different = differences([each for each in settings if each])
    for record, own in zip(records, settings, strict=True):
        record["differs"] = {key: own[key] for key in different if key in own}
    return records


def differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all tables; a missing key differs from any value."""
    keys = dict.fromkeys(key for table in settings for key in table)
    return [key for key in keys if len({json.dumps(table.get(key, "missing")) for table in settings}) > 1]


@checked()
def runs_in(folder: str | Path) -> list[Path]:
    """The runs in a folder, by name; the folder itself if it is a run."""
    folder = Path(folder)
    if (folder / CONFIG).is_file():
        return [folder]
    return [path for path in sorted(folder.glob("[!.]*")) if (path / CONFIG).is_file()]


def settings_of(config: SavedConfig) -> dict[str, Any]:
    """A run's settings as one flat table, with what was decided in place of what was left open.

    Keys have no section, except those of the task and of the layout: `learning_rate`, `decoder.depth`, `task.share`,
    `parallel.tensor`; `from` is the run whose weights it started with.
    """
    parts = {
        "train": config.train,
        "data": config.data,
        "task": config.task,
        "parallel": config.parallel,
        "model": config.model,
    }
    tables = {name: {} if part is None else flat(part.to_dict()) for name, part in parts.items()}
    chosen = {} if config.chosen is None else config.chosen.to_dict()
    decided = {key: value for key, value in chosen.items() if key not in MEASURED}
    if "start" in decided:
        start = decided.pop("start")
        decided["from"] = None if start is None else start["run"]
    named = {f"{name}.{key}": value for name in ("task", "parallel") for key, value in tables[name].items()}
    return {**tables["train"], **decided, **tables["data"], **named, **tables["model"]}


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; lists are values."""
    flattened: dict[str, Any] = {}
    for key, value in data.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flattened


def _record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(FIELDS) | {"run": str(path), "state": "damaged", "settings": {}}
    try:
        config = read_config(path)
        lines = read_lines(path / METRICS)
        record |= {"depth": config.model.last()[1].depth, "dim": config.model.dim, "context": config.model.context}
        record |= {
            "step": lines[-1]["step"] if lines else None,
            "steps": config.chosen.steps if config.chosen else None,
            "settings": settings_of(config),
        }
        wrong = damage(path, hashes=False)
        if wrong:
            raise HeddleError(f"{path / wrong[0]}")
        if (path / "data").is_dir():
            open_store(path / "data")  # refuses what is damaged
        return record | {"state": _state(path, config)} | _scores(path, lines) | _best(lines) | _speed(path)
    except (HeddleError, ValueError) as error:
        return record | {"error": str(error)}


def _state(path: Path, config: SavedConfig) -> str:
    if config.chosen and is_held(path):
        return "training"
    if (path / "model.safetensors").is_file():
        return "finished" if config.chosen else "imported" if config.origin else "saved"
    return "stopped" if newest_valid(path)[0] else "begun"


def _scores(path: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The final scores if training has finished, else the last estimate, with how much text they cover."""
    ended = read_manifest(path).get("evaluation") if (path / MANIFEST).is_file() else None
    last = next((line for line in reversed(lines) if "validation_loss" in line), None)
    if ended:
        measured, loss, error = ended, ended["loss"], ended["standard_error"]
        scored = "all" if ended["share"] == 1 else f"{ended['share']:.0%}, of it"
    elif last:
        measured, loss, error = last, last["validation_loss"], last["validation_error"]
        scored = "an estimate"
    else:
        return {}
    metrics = {key: value for key, value in measured.items() if isinstance(value, float) and key not in SCORE}
    scores = {"validation_loss": loss, "validation_error": error, "bits_per_byte": metrics.get("bits_per_byte")}
    return {**scores, "metrics": metrics, "scored": scored}


def _best(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The evaluation with the lowest loss. All score the same sample, so they can be compared."""
    scored = [line for line in lines if "validation_loss" in line]
    if not scored:
        return {}
    best = min(scored, key=lambda line: float(line["validation_loss"]))
    return {"best_loss": best["validation_loss"], "best_error": best["validation_error"], "best_step": best["step"]}


def _speed(path: Path) -> dict[str, Any]:
    tokens, seconds, _ = read_speed(path)
    return {"tokens_per_second": tokens / seconds, "seconds": seconds} if seconds else {}
