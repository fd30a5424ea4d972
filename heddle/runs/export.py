"""The metrics of runs for other programs: a table as CSV, and event files for TensorBoard."""

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from heddle.checks import SOME, checked
from heddle.errors import HeddleError
from heddle.runs.compare import METRICS
from heddle.runs.journal import read_lines
from heddle.weights.files import is_held, write_file

WAIT = 1.0  # seconds between looks at a run that is being trained


@checked(runs=SOME)
def write_csv(runs: Sequence[str | Path], file: str | Path) -> int:
    """Write the metrics of runs as one CSV table, and return its number of rows.

    A row is a step of a run: the columns are `run`, `step`, and every metric that any of the runs has; a step without an
    evaluation has no validation loss. The load of expert 2 is in the column `expert_load/LAYER/2`. An existing file is replaced.

    Raises:
        HeddleError: a run has no metrics, or the file cannot be written.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        steps: dict[int, dict[str, Any]] = {}
        for line in metrics_of(run):
            steps.setdefault(line["step"], {"run": str(run)}).update(scalars(line))
        rows += steps.values()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(Path(file), text.getvalue().encode(), replace=True)
    return len(rows)


@checked(runs=SOME)
def write_events(runs: Sequence[str | Path], directory: str | Path, follow: bool = False) -> int:
    """Write the metrics of runs as TensorBoard's event files, one folder per run, and return the number of values.

    Args:
        directory: a run's folder in it must not exist yet.
        follow: whether to continue while any of the runs is being trained.

    Raises:
        HeddleError: tensorboardX is not installed, a run has no metrics, two runs have one name, or a folder exists.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise HeddleError("event files need tensorboardX: pip install tensorboardX") from None
    folders = {Path(run): Path(directory) / Path(run).resolve().name for run in runs}
    if len(set(folders.values())) < len(folders):
        raise HeddleError(f"{directory} gets a folder for each run, so the runs need different names")
    for run, folder in folders.items():
        if folder.exists():
            raise HeddleError(f"{folder} already exists: remove it, or choose another directory")
        if not (follow and is_held(run)):
            metrics_of(run)
    with ExitStack() as stack:
        writers = {run: stack.enter_context(SummaryWriter(str(folder))) for run, folder in folders.items()}
        done, count = dict.fromkeys(writers, 0), 0
        while True:
            training = follow and any(
                is_held(run) for run in writers
            )  # before reading: nothing is written after it ends
            for run, writer in writers.items():
                lines = read_lines(run / METRICS)[done[run] :]
                for step, key, value in _values(lines):
                    writer.add_scalar(key, value, step)
                    count += 1
                done[run] += len(lines)  # a resumed run writes the same lines again
                writer.flush()
            if not training:
                return count
            time.sleep(WAIT)


def metrics_of(run: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`.

    Raises:
        HeddleError: there are none, or one is damaged.
    """
    lines = read_lines(Path(run) / METRICS)
    if not lines:
        raise HeddleError(f"{run} has no metrics yet: it was not trained here, or has not begun")
    return lines


def scalars(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics with one number per key: of a list, each item has its own."""
    values: dict[str, Any] = {}
    for key, value in line.items():
        values |= (
            {f"{key}/{place}": each for place, each in enumerate(value)} if isinstance(value, list) else {key: value}
        )
    return values


def _values(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str, Any]]:
    for line in lines:
        for key, value in scalars(line).items():
            if key != "step":
                yield line["step"], key, value
