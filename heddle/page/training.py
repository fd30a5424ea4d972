"""The curves of runs, finished or in progress, and their samples."""

from pathlib import Path
from typing import Any

from heddle.errors import HeddleError
from heddle.look.readings import read_readings
from heddle.page.queries import Document, Query
from heddle.page.subject import PageModel
from heddle.runs.compare import METRICS, compare_runs
from heddle.runs.journal import read_lines, read_samples

POINTS = 2000  # maximum number of points of a curve
SAMPLES = 40  # the last ones


def training(subject: PageModel, query: Query) -> Document:
    """Each run's numbers by step, its settings where they differ, and its samples."""
    if subject.directory is None:
        raise HeddleError("this model was not loaded from a run, so it has no curves")
    paths = [subject.directory, *subject.others]
    records = compare_runs(paths)
    return {"runs": [_run(path, record) for path, record in zip(paths, records, strict=True)]}


def _run(path: Path, record: dict[str, Any]) -> Document:
    curves: dict[str, list[list[float]]] = {}
    for line in read_lines(path / METRICS):
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                curves.setdefault(name, []).append([line["step"], value])
    fields = (
        "state",
        "step",
        "steps",
        "validation_loss",
        "best_loss",
        "best_step",
        "metrics",
        "tokens_per_second",
        "error",
    )
    return {
        "name": path.resolve().name,
        "curves": {name: _thin(points) for name, points in curves.items()},
        "readings": _readings(path),
        "samples": [[step, text] for step, text in read_samples(path)][-SAMPLES:],
        "differs": {key: str(value) for key, value in record.get("differs", {}).items()},
    } | {name: record.get(name) for name in fields}


def _readings(path: Path) -> dict[str, dict[str, list[list[float]]]]:
    """The values by step of each measure at each place."""
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for step, measures in sorted(read_readings(path).items()):
        for measure, places in measures.items():
            for place, value in places.items():
                curves.setdefault(measure, {}).setdefault(place, []).append([step, value])
    return {
        measure: {place: _thin(points) for place, points in by_place.items()} for measure, by_place in curves.items()
    }


def _thin(points: list[list[float]]) -> list[list[float]]:
    """At most `POINTS` points, including the last one."""
    step = -(-len(points) // POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]
