"""`heddle runs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from heddle.cli.output import RUNS, console, duration, estimate, find_run, format_cell, pluralize, print_json, table
from heddle.errors import HeddleError
from heddle.runs.compare import compare_runs, runs_in
from heddle.runs.export import write_csv, write_events
from heddle.runs.plot import plot_runs
from heddle.weights.files import refuse_unwritable

ALWAYS = ("run", "validation loss")  # columns that are never left out
GAP = 2  # blanks between columns
MOST = 8  # settings that the table shows


def runs(
    *names: str,
    csv: Path | None = None,
    tensorboard: Path | None = None,
    follow: bool = False,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Compare runs: scores, speed, and the settings in which they differ.

    A finished run shows its final scores: "scored" is the share of the held-out text that they cover; the number after ± is
    the standard error of an estimate for all of it, which `heddle eval` computes. An unfinished run shows its last estimate,
    over a small sample; "best" is the lowest of these estimates. "tokens/s" and "time" are those of the training steps.

    Parameters
    ----------
    names
        Runs, or folders with runs. Defaults to all in runs/.
    csv
        Write all metrics to this new file, one row per run and step.
    tensorboard
        Write all metrics to this directory as event files, for `tensorboard --logdir`. Needs tensorboardX.
    follow
        With --tensorboard: continue while the runs are being trained.
    plot
        Draw losses, learning rates and gradient norms into this file, a .png, .svg or .pdf. Needs matplotlib.
    json
        One JSON document on stdout.
    """
    if follow and tensorboard is None:
        raise HeddleError("--follow continues to write event files, so it needs --tensorboard DIR")
    if csv is not None:
        refuse_unwritable(csv)
    paths = [path for name in names for path in runs_in(_folder(name))] if names else runs_in(RUNS)
    paths = list(dict.fromkeys(paths))
    out = console(json)
    wanted = csv, tensorboard, plot
    if any(each is not None for each in wanted):
        trained = [path for path in paths if names or (path / "metrics.jsonl").is_file()]
        if not trained:
            raise HeddleError(f"no runs with metrics in {', '.join(names) or RUNS}; `heddle train` creates one")
        if csv is not None:
            out.print(f"{csv}: {pluralize(write_csv(trained, csv), 'row')}", markup=False)
        if plot is not None:
            plot_runs(trained, plot)
            out.print(f"{plot}: {pluralize(len(trained), 'run')}", markup=False)
        if tensorboard is not None:
            written = pluralize(write_events(trained, tensorboard, follow), "value")
            out.print(f"{tensorboard}: {written}; look at them with tensorboard --logdir {tensorboard}", markup=False)
        if json:
            print_json({"runs": [str(path) for path in trained]})
        return
    records = compare_runs(paths)
    if json:
        print_json(records)
    elif not records:
        out.print(f"no runs in {', '.join(names) or RUNS}; `heddle train` creates one", markup=False)
    else:
        show(records, out)


def _folder(name: str) -> Path:
    """A run, or a folder of runs.

    Raises:
        HeddleError: there is neither.
    """
    return Path(name) if Path(name).is_dir() else find_run(name)


def show(records: Sequence[dict[str, Any]], out: Console) -> None:
    """Print records of runs as a table: a column for each setting in which they differ, and nothing that they share."""
    different = list(dict.fromkeys(key for record in records for key in record["differs"]))
    different = [key for key in different if key not in ("steps", "evaluate_every", "save_every")]
    # A perplexity says the same as the loss beside it.
    measured = dict.fromkeys(key for record in records for key in record["metrics"] or {} if key != "perplexity")
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
            for name in measured
        },
        **{key: [format_cell(record["differs"].get(key)) for record in records] for key in different[:MOST]},
        "tokens/s": [f"{record['tokens_per_second']:,.0f}" if record["seconds"] else "-" for record in records],
        "time": [duration(record["seconds"]) if record["seconds"] else "-" for record in records],
    }
    cells = {name: column for name, column in cells.items() if name in ("run", "state") or set(column) != {"-"}}
    fitting = _fitting(cells, out)
    out.print(table(list(fitting), zip(*fitting.values(), strict=True)))
    if left := len(cells) - len(fitting):
        what = "1 column does" if left == 1 else f"{left} columns do"
        out.print(f"{what} not fit here: --json shows everything, and --csv FILE writes all metrics")
    if len(different) > MOST:
        out.print(f"{len(different) - MOST} more settings differ: --json shows them")
    for record in records:
        if "error" in record:
            out.print(record["error"], markup=False)


def _fitting(cells: dict[str, list[str]], out: Console) -> dict[str, list[str]]:
    """The columns that fit into the terminal side by side, in their order; without a terminal, all of them.

    The run and its loss are always there. The console is widened where it would cut a cell.
    """
    widths = {name: max(map(cell_len, [name, *column])) for name, column in cells.items()}
    left, kept = out.width + GAP, set[str]()
    for name in sorted(cells, key=lambda name: name not in ALWAYS):
        needed = widths[name] + GAP
        if name in ALWAYS or not out.is_terminal or needed <= left:
            kept.add(name)
            left -= needed
    out.width = max(out.width, out.width - left)
    return {name: column for name, column in cells.items() if name in kept}


def _step(record: dict[str, Any]) -> str:
    done, steps = record["step"], record["steps"]
    return "-" if steps is None else f"{done or 0:,}" if done == steps else f"{done or 0:,} of {steps:,}"


def _loss(loss: float | None, error: float | None) -> str:
    return "-" if loss is None else estimate(loss, error)
