"""Printing: people read stdout, unless `--json` was asked for; then one JSON document stands there and people read stderr."""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heddle.cli.streams import Lasting
from heddle.errors import HeddleError, did_you_mean
from heddle.errors import counted as counted

RUNS = Path("runs")


class Words(Console):
    """One that leaves it to `heddle.cli.main.run` what a broken pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(as_json: bool = False, then: str | None = None) -> Console:
    """Where words for people go. What is no terminal has no edge to wrap at.

    Args:
        then: what the command does when nobody reads the words any more, if it does not end then.
    """
    stream: Any = sys.stderr if as_json else sys.stdout
    if then is not None:
        stream = Lasting(stream, then)
    return Words(file=stream, highlight=False, soft_wrap=True, width=None if stream.isatty() else 160)


@contextmanager
def phases(out: Console) -> Iterator[Callable[[str], None]]:
    """A function that prints a line for each phase; in a terminal something turns until the next one."""
    with out.status("") as status:

        def tell(line: str) -> None:
            out.print(line, markup=False)
            status.update(line)

        yield tell


@contextmanager
def bar(out: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how much of a long task is done; silent where there is no terminal."""
    with Progress(console=out, transient=True, disable=not out.is_terminal) as shown_progress:
        task = shown_progress.add_task(what, total=None)

        def done(count: int, total: int) -> None:
            shown_progress.update(task, completed=count, total=total)

        yield done


def document(data: Any) -> None:
    """The one JSON document of a command."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """A plain table; numbers stand on the right."""
    rows = [list(row) for row in rows]
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) for row in rows) and rows
        made.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*[shown(cell) for cell in row])
    return made


def shown(value: Any) -> str:
    """A value as a table shows it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def metrics(found: Mapping[str, float]) -> str:
    """What a task measures beside the loss, in words; counts are left to where there is room for them."""
    named = {name.replace("_", " "): value for name, value in found.items() if isinstance(value, float)}
    return ", ".join(f"{name} {value:.4f}" for name, value in named.items())


def estimate(loss: float, error: float | None) -> str:
    """A loss, with its standard error where it was measured on a sample."""
    return f"{loss:.4f} ± {error:.4f}" if error else f"{loss:.4f}"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def find_run(name: str | Path) -> Path:
    """The run a user means: a path, or the name of a directory in `runs/`.

    Raises:
        HeddleError: there is none; the nearest name is given.
    """
    for path in (Path(name), RUNS / name):
        if path.is_dir():
            return path
    known = [path.name for path in RUNS.glob("[!.]*")]
    raise HeddleError(f"there is no run {str(name)!r}.{did_you_mean(str(name), known)} `heddle runs` lists those here")


def new_run(name: str | None) -> Path:
    """Where a new run goes: the path or name given, else the next number in `runs/`.

    Raises:
        HeddleError: the name is empty, hidden, holds what no terminal shows, or leads out of where it began.
    """
    if name is not None:
        path = Path(name)
        if ".." in path.parts or path.name.startswith((".", "-")) or not path.name or not name.isprintable():
            plain = f", such as {path.name!r}" if re.fullmatch(r"\w[\w.-]*", path.name) else ""
            raise HeddleError(f"{name!r} is no name for a run: give a plain one{plain}, or a path without '..'")
        return path if path.parent != Path() else RUNS / name
    # One that is being prepared has its number already: `.001.0a1b2c3d.partial`.
    names = [path.name.removeprefix(".").partition(".")[0] for path in RUNS.glob("*")]
    numbers = [int(name) for name in names if name.isdecimal()]
    return RUNS / f"{max(numbers, default=0) + 1:03d}"
