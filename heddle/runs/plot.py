"""Curves of runs, drawn into a file."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.checks import SOME, checked
from heddle.errors import HeddleError
from heddle.runs.export import metrics_of
from heddle.train.curves import draw
from heddle.weights.files import write_file

FORMATS = ("png", "svg", "pdf")


@checked(runs=SOME)
def plot_runs(runs: Sequence[str | Path], file: str | Path) -> Any:
    """Draw the losses of runs, with their learning rates and gradient norms beneath; return matplotlib's `Figure`.

    The training loss is a moving average over a fiftieth of the steps; the validation loss has its standard errors.

    Args:
        runs: directories with a `metrics.jsonl`.
        file: an image, in the format of its suffix: .png, .svg or .pdf. An existing file is replaced.

    Raises:
        HeddleError: matplotlib is not installed, the suffix is another, a run has no metrics, or the file cannot be written.
    """
    file = Path(file)
    suffix = file.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise HeddleError(f"{file}: a plot ends in {', '.join('.' + each for each in FORMATS)}")
    figure = draw(_names(runs), [metrics_of(run) for run in runs])
    image = io.BytesIO()
    figure.savefig(image, format=suffix, dpi=150)
    write_file(file, image.getvalue(), replace=True)
    return figure


def _names(runs: Sequence[str | Path]) -> list[str]:
    """The runs' names, or their paths where two have the same name."""
    short = [Path(run).resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]
