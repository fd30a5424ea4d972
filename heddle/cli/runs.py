"""`heddle runs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from heddle.cli.options import Json
from heddle.cli.output import RUNS, console, find_run, format_cell, pluralize, print_json, table
from heddle.display import duration, estimate
from heddle.errors import HeddleError, for_each
from heddle.runs.compare import compare_runs, runs_in
from heddle.runs.export import write_csv, write_events
from heddle.runs.plot import plot_runs
from heddle.weights.files import refuse_unwritable

ALWAYS = ("run", "validation loss")  # columns that are never left out
GAP = 2  # spaces between columns
MOST = 8  # settings in the table


def runs(
    *names: str,
    csv: Path | None = None,
    tensorboard: Path | None = None,
    follow: bool = False,
    plot: Path | None = None,
    json: Json = False,
) -> None:
    """Compare runs: scores, speed, and the settings in which they differ.

    A finished run shows its final scores: "scored" is the share of the held-out text that they cover, and ± is the standard
    error of the estimate (`heddle eval` scores all of it). An unfinished run shows its last evaluation, on a small sample; "best"
    is the lowest of these. "tokens/s" and "time" cover the training steps only.

    Parameters
    ----------
    names
        Runs, or folders of runs. Defaults to all runs in runs/.
    csv
        Write all metrics to this new CSV file, one row per run and step.
    tensorboard
        Write all metrics to this directory as TensorBoard event files. Needs tensorboardX.
    follow
        With --tensorboard: keep writing while the runs are training.
    plot
        Plot losses, learning rates and gradient norms to this .png, .svg or .pdf file. Needs matplotlib.
    """
    if follow and tensorboard is None:
        raise HeddleError("--follow needs --tensorboard DIR")
    if csv is not None:
        refuse_unwritable(csv)
    paths = [path for each in for_each(_resolve, names) for path in runs_in(each)] if names else runs_in(RUNS)
    paths = list(dict.fromkeys(paths))
    out = console(json)
    outputs = csv, tensorboard, plot
    if any(output is not None for output in outputs):
        with_metrics = [path for path in paths if names or (path / "metrics.jsonl").is_file()]
        if not with_metrics:
            raise HeddleError(f"no runs with metrics in {', '.join(names) or RUNS}; `heddle train` creates one")
        if csv is not None:
            out.print(f"{csv}: {pluralize(write_csv(with_metrics, csv), 'row')}")
        if plot is not None:
            plot_runs(with_metrics, plot)
            out.print(f"{plot}: {pluralize(len(with_metrics), 'run')}")
        if tensorboard is not None:
            written = pluralize(write_events(with_metrics, tensorboard, follow), "value")
            out.print(f"{tensorboard}: {written}; view them with: tensorboard --logdir {tensorboard}")
        if json:
            print_json({"runs": [str(path) for path in with_metrics]})
        return
    records = compare_runs(paths)
    if json:
        print_json(records)
    elif not records:
        out.print(f"no runs in {', '.join(names) or RUNS}; `heddle train` creates one")
    else:
        print_runs(records, out)


def _resolve(name: str) -> Path:
    """A run, or a folder of runs."""
    return Path(name) if Path(name).is_dir() else find_run(name)


def print_runs(records: Sequence[dict[str, Any]], out: Console) -> None:
    """Print a table of runs, with a column for each setting in which they differ."""
    settings = list(dict.fromkeys(key for record in records for key in record["differs"]))
    settings = [key for key in settings if key not in ("steps", "evaluate_every", "save_every")]
    # Perplexity repeats the loss.
    metric_names = dict.fromkeys(key for record in records for key in record["metrics"] or {} if key != "perplexity")
    cells: dict[str, list[str]] = {
        "run": [record["run"] for record in records],
        "state": [record["state"] for record in records],
        "step": [_step(record) for record in records],
        "validation loss": [_loss(record["validation_loss"], record["validation_error"]) for record in records],
        "scored": [format_cell(record["scored"]) for record in records],
        "best": [_loss(record["best_loss"], record["best_error"]) for record in records],
        "at step": [format_cell(record["best_step"]) for record in records],
        **{
            name.replace("_", " "): [format_cell((record["metrics"] or {}).get(name)) for record in records]
            for name in metric_names
        },
        **{key: [format_cell(record["differs"].get(key)) for record in records] for key in settings[:MOST]},
        "tokens/s": [f"{record['tokens_per_second']:,.0f}" if record["seconds"] else "-" for record in records],
        "time": [duration(record["seconds"]) if record["seconds"] else "-" for record in records],
    }
    cells = {name: column for name, column in cells.items() if name in ("run", "state") or set(column) != {"-"}}
    fitting = _fit_columns(cells, out)
    out.print(table(list(fitting), zip(*fitting.values(), strict=True)))
    if hidden := len(cells) - len(fitting):
        columns = "1 column does" if hidden == 1 else f"{hidden} columns do"
        out.print(f"{columns} not fit: --json shows everything, and --csv FILE writes all metrics")
    if len(settings) > MOST:
        out.print(f"{len(settings) - MOST} more settings differ: --json shows them")
    for record in records:
        if "error" in record:
            out.print(record["error"])


def _fit_columns(cells: dict[str, list[str]], out: Console) -> dict[str, list[str]]:
    """Select the columns that fit into the terminal; without a terminal, all of them.

    The run and its loss are always included. The console is widened if it would cut a cell.
    """
    widths = {name: max(map(cell_len, [name, *column])) for name, column in cells.items()}
    remaining, selected = out.width + GAP, set[str]()
    for name in sorted(cells, key=lambda name: name not in ALWAYS):
        needed = widths[name] + GAP
        if name in ALWAYS or not out.is_terminal or needed <= remaining:
            selected.add(name)
            remaining -= needed
    out.width = max(out.width, out.width - remaining)
    return {name: column for name, column in cells.items() if name in selected}


def _step(record: dict[str, Any]) -> str:
    done, steps = record["step"], record["steps"]
    return "-" if steps is None else f"{done or 0:,}" if done == steps else f"{done or 0:,} of {steps:,}"


def _loss(loss: float | None, error: float | None) -> str:
    return "-" if loss is None else estimate(loss, error)
