"""A series of runs from one command: `heddle train --seeds N`, and settings with several values."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from heddle.cli.output import pluralize, print_json
from heddle.cli.progress import Progress
from heddle.cli.runs import print_runs
from heddle.cli.training import report_resume
from heddle.config.sweep import Variant
from heddle.look.readings import Readings
from heddle.runs.compare import compare_runs
from heddle.runs.seed_statistics import SeedStatistics
from heddle.runs.session import Session
from heddle.runs.sweep import check_alone, directory_of, statistics_by_variant, sweep
from heddle.runs.trainer import Interrupted
from heddle.train.report import Report
from heddle.train.training import Reader


def train_series(
    variants: Sequence[Variant], run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None
) -> None:
    """Train every run of a series, then compare them."""

    @contextmanager
    def watch(session: Session) -> Iterator[Reader]:
        report_resume(session, out)
        with Progress(out, session.run.chosen, session.step, session.ranks.count) as progress:
            saved = Readings(session, readings)

            def read(report: Report) -> None:
                progress(report)
                saved(report)

            yield read

    hint = f"to continue the series, repeat the command with --name {shlex.quote(str(run))}"
    try:
        outcomes = sweep(variants, run, out.print, watch)
    except Interrupted as stop:
        out.print(f"{str(stop).partition('; ')[0]}; {hint}")
        if json:
            print_json({"series": str(run), "finished": False})
        raise SystemExit(128 + stop.signal) from None
    except KeyboardInterrupt as stop:  # while a run is being prepared or evaluated
        stop.args = (f"stopped; {hint}",)
        raise
    records, results = compare_runs([outcome.run for outcome in outcomes]), statistics_by_variant(outcomes)
    out.print()
    print_runs(records, out)
    for outcome in outcomes:
        if outcome.problem is not None:
            out.print(f"{outcome.run} diverged: {outcome.problem}")
    for settings, entry in results:
        if entry.runs > 1:
            out.print(_summary(settings, entry))
    if json:
        outcomes_json = [
            {"run": str(entry.run), "settings": dict(entry.settings), "how": entry.how, "loss": entry.loss}
            for entry in outcomes
        ]
        spread = [{"settings": settings, **entry._asdict()} for settings, entry in results]
        print_json({"series": str(run), "finished": True, "runs": outcomes_json, "spread": spread, "records": records})


def plan_series(variants: Sequence[Variant], run: Path, out: Console, json: bool) -> None:
    """Print the runs that `train_series` would train."""
    check_alone()
    names = [str(directory_of(run, variant)) for variant in variants]
    out.print("\n".join(names))
    out.print(f"{pluralize(len(names), 'run')}, one at a time; nothing was trained (--dry-run)")
    if json:
        print_json(
            {
                "runs": [
                    {"run": name, "settings": variant.settings} for name, variant in zip(names, variants, strict=True)
                ]
            }
        )


def _summary(settings: Mapping[str, Any], statistics: SeedStatistics) -> str:
    label = ", ".join(f"{path.partition('.')[2]} = {value}" for path, value in settings.items())
    return (
        f"{label + ': ' if label else ''}validation loss {statistics.mean:.4f}, the mean of {pluralize(statistics.runs, 'seed')}; "
        f"standard deviation {statistics.deviation:.4f}, 95 % interval of the mean {statistics.low:.4f} to {statistics.high:.4f}"
    )
