"""Printing for people on stdout or, with `--json`, on stderr while stdout gets one JSON document."""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heddle.cli.streams import Lasting
from heddle.errors import HeddleError, did_you_mean
from heddle.errors import pluralize as pluralize

RUNS = Path("runs")


class PlainConsole(Console):
    """A console that raises on a broken pipe, for `heddle.cli.main.run` to handle."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(as_json: bool = False, then: str | None = None) -> Console:
    """A console that prints text verbatim: no markup, no emoji codes, no highlighting.

    Lines wrap only in a terminal.

    Args:
        as_json: print to stderr, since stdout gets a JSON document.
        then: what the command does after a broken pipe, if it goes on; None: a broken pipe raises.
    """
    stream: Any = sys.stderr if as_json else sys.stdout
    if then is not None:
        stream = Lasting(stream, then)
    width = None if stream.isatty() else 160
    return PlainConsole(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True, width=width)


@contextmanager
def phases(out: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line for each phase; a terminal also shows a spinner."""
    with out.status("") as status:

        def tell(line: str) -> None:
            out.print(line)
            status.update(Text(line))

        yield tell


@contextmanager
def bar(out: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that updates a progress bar; silent without a terminal."""
    from rich.progress import Progress  # takes a tenth of the time of `heddle --help`

    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def done(count: int, total: int) -> None:
            progress.update(task, completed=count, total=total)

        yield done


def print_json(data: Any) -> None:
    """Print a command's JSON document."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """A table without borders or markup; numeric columns are right-aligned."""
    rows = [list(row) for row in rows]
    heading = None if title is None else Text(title, "table.title")
    result = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        is_numeric = all(isinstance(row[number], int | float) for row in rows) and rows
        result.add_column(Text(name), justify="right" if is_numeric else "left")
    for row in rows:
        result.add_row(*[Text(format_cell(cell)) for cell in row])
    return result


def format_cell(value: Any) -> str:
    """A value formatted for a table."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def find_run(name: str | Path) -> Path:
    """Resolve a path, or the name of a directory in `runs/`.

    Raises:
        HeddleError: no such run; the message suggests the nearest name.
    """
    for path in (Path(name), RUNS / name):
        if path.is_dir():
            return path
    if Path(name).is_file():
        raise HeddleError(f"{name} is a file; a run is a directory written by `heddle train`")
    run_names = [path.name for path in RUNS.glob("[!.]*")]
    raise HeddleError(f"no run {str(name)!r}.{did_you_mean(str(name), run_names)} See `heddle runs`")


def new_run(name: str | None) -> Path:
    """The path of a new run: the given path or name, else the next number in `runs/`.

    Raises:
        HeddleError: the name is empty, hidden or unprintable, or contains '..'.
    """
    if name is not None:
        path = Path(name)
        if ".." in path.parts or path.name.startswith((".", "-")) or not path.name or not name.isprintable():
            suggestion = f", such as {path.name!r}" if re.fullmatch(r"\w[\w.-]*", path.name) else ""
            raise HeddleError(f"{name!r} is not a valid run name: use a plain name{suggestion}, or a path without '..'")
        return path if path.parent != Path() else RUNS / name
    # A run in preparation has its number already (`.001.0a1b2c3d.partial`), and so have the runs of a series (`001-seed0`).
    names = [re.match(r"\.?(\d+)(?=[.-]|$)", path.name) for path in RUNS.glob("*")]
    numbers = [int(name[1]) for name in names if name]
    return RUNS / f"{max(numbers, default=0) + 1:03d}"
