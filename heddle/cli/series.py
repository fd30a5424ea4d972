"""Several runs by one command: `heddle train --seeds N`, and settings with several values."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from heddle.cli.output import pluralize, print_json
from heddle.cli.progress import Progress
from heddle.cli.runs import show
from heddle.cli.training import report_resume
from heddle.config.sweep import Variant
from heddle.look.readings import Readings
from heddle.runs.compare import compare_runs
from heddle.runs.seed_statistics import SeedStatistics
from heddle.runs.session import Session
from heddle.runs.sweep import directory_of, statistics_by_variant, sweep
from heddle.runs.trainer import Interrupted
from heddle.train.report import Report
from heddle.train.training import Reader


def train_series(
    found: Sequence[Variant], run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None
) -> None:
    """Train all runs of a series, and compare them."""

    @contextmanager
    def watch(session: Session) -> Iterator[Reader]:
        report_resume(session, out)
        with Progress(out, session.run.chosen, session.step) as progress:
            saved = Readings(session, readings)

            def tell(report: Report) -> None:
                progress(report)
                saved(report)

            yield tell

    again = f"to continue the series, repeat the command with --name {shlex.quote(str(run))}"
    try:
        outcomes = sweep(found, run, lambda line: out.print(line, markup=False), watch)
    except Interrupted as stop:
        out.print(f"{str(stop).partition('; ')[0]}; {again}", markup=False)
        if json:
            print_json({"series": str(run), "finished": False})
        raise SystemExit(128 + stop.signal) from None
    except KeyboardInterrupt as stop:  # while a run is prepared or scored
        stop.args = (f"stopped; {again}",)
        raise
    records, results = compare_runs([outcome.run for outcome in outcomes]), statistics_by_variant(outcomes)
    out.print()
    show(records, out)
    for outcome in outcomes:
        if outcome.problem is not None:
            out.print(f"{outcome.run} diverged: {outcome.problem}", markup=False)
    for settings, each in results:
        if each.runs > 1:
            out.print(_in_words(settings, each), markup=False)
    if json:
        how = [
            {"run": str(each.run), "settings": dict(each.settings), "how": each.how, "loss": each.loss}
            for each in outcomes
        ]
        rows = [{"settings": settings, **each._asdict()} for settings, each in results]
        print_json({"series": str(run), "finished": True, "runs": how, "spread": rows, "records": records})


def try_series(found: Sequence[Variant], run: Path, out: Console, json: bool) -> None:
    """Print which runs `train_series` would train."""
    names = [str(directory_of(run, variant)) for variant in found]
    out.print("\n".join(names), markup=False)
    out.print(f"{pluralize(len(names), 'run')}, one at a time; nothing was trained (--dry-run)", markup=False)
    if json:
        print_json(
            {"runs": [{"run": name, "settings": each.settings} for name, each in zip(names, found, strict=True)]}
        )


def _in_words(settings: Mapping[str, Any], found: SeedStatistics) -> str:
    what = ", ".join(f"{path.partition('.')[2]} = {value}" for path, value in settings.items())
    return (
        f"{what + ': ' if what else ''}validation loss {found.mean:.4f}, the mean of {pluralize(found.runs, 'seed')}; "
        f"standard deviation {found.deviation:.4f}, 95 % interval of the mean {found.low:.4f} to {found.high:.4f}"
    )
