"""`heddle data show` and `heddle data lint`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from heddle.cli.output import RUNS, console, find_run, pluralize, print_json, table
from heddle.cli.train import read_words
from heddle.errors import HeddleError
from heddle.runs.lint import lint_run, lint_sources
from heddle.runs.show import ShownMask, ShownRow, ShownSource, show_step


def show(
    run: str, /, *, step: int = 1, rows: int = 1, length: int = 32, start: int | None = None, json: bool = False
) -> None:
    """Show what a step reads: tokens, what each place predicts, and which tokens it may attend to.

    Parameters
    ----------
    run
        A run directory, or its name in runs/. It need not have been trained yet, and is not changed.
    step
        The step, from 1.
    rows
        How many rows of the batch to show, at most.
    length
        How many places of each row to show.
    start
        The first place of each row to show, from 0. Defaults to the row's first target if it comes after the first `length` places.
    json
        One JSON document on stdout.
    """
    if Path(run).is_file():
        raise HeddleError(
            f"{run} is a file, but this takes a run: a directory that `heddle train` writes. "
            f"`heddle data lint {run}` looks at files"
        )
    found = show_step(find_run(run), step, rows, length, start)
    if json:
        print_json({"run": str(find_run(run)), **asdict(found)})
        return
    out = console()
    share = f"{pluralize(found.targets, 'target')} in {pluralize(found.places, 'place')}"
    out.print(f"step {found.step} of {found.steps}: {found.described}; {share}", markup=False)
    for number, row in enumerate(found.rows):
        if row.source is not None:
            out.print(_table(row.source, {}, f"\nrow {number}, source"))
        predicted: dict[str, Sequence[Any]] = {
            "predicts": ["" if piece is None else repr(piece) for piece in row.predicts],
            "target": ["" if target is None else target for target in row.targets],
            "weight": row.weights,
        }
        out.print(_table(row, predicted if row.answer is None else {}, f"\nrow {number}", row.first))
        if row.answer is not None:
            _, name, weight = row.answer
            said = f"predicts {name}, with weight {weight:g}" if name else "predicts nothing"
            out.print(f"row {number} {said}", markup=False)
    for mask in found.masks:
        out.print("\n" + picture(mask), markup=False)


def _table(read: ShownRow | ShownSource, predicted: Mapping[str, Sequence[Any]], title: str, first: int = 0) -> Table:
    """The places of a row from place `first` on, with what they predict."""
    columns = {
        "place": range(first, first + len(read.tokens)),
        "id": read.tokens,
        "token": [repr(piece) for piece in read.pieces],
        **predicted,
        "position": read.positions,
        "segment": read.segments,
    }
    return table(list(columns), zip(*columns.values(), strict=True), title)


def picture(mask: ShownMask) -> str:
    """A mask as text: a line for each query, a mark for each key that it may attend to."""
    layers = ", ".join(map(str, mask.layers))
    lines = ["".join("█" if seen else "·" for seen in query) for query in mask.seen]
    return "\n".join([f"{mask.stack}, layers {layers}, row 0: {mask.rule}", *lines])


def lint(*words: str, json: bool = False) -> None:
    """Look for what goes wrong in data: duplicates, overlaps, damaged characters, labels, swapped languages, cropped texts.

    The exit code is 1 if something is wrong, and 0 if there are at most remarks.

    Parameters
    ----------
    words
        Sources and key=value settings, as for `heddle train`; or one run, whose tokens and batches are looked at instead.
    json
        One JSON document on stdout.
    """
    if not words:
        raise HeddleError("name sources or a run: heddle data lint my.txt")
    run = _run_named(words)
    findings = lint_sources(read_words(words)) if run is None else lint_run(run)
    if json:
        print_json({"of": list(words), "findings": [asdict(each) for each in findings]})
    else:
        out = console()
        for each in sorted(findings, key=lambda each: not each.wrong):
            for line in each.lines():
                out.print(line, markup=False)
        if not findings:
            out.print("nothing was found", markup=False)
    if any(each.wrong for each in findings):
        raise SystemExit(1)


def _run_named(words: tuple[str, ...]) -> Path | None:
    """The run that a single word names: a directory with a config.json, there or in runs/."""
    if len(words) > 1 or "=" in words[0]:
        return None
    return next((path for path in (Path(words[0]), RUNS / words[0]) if (path / "config.json").is_file()), None)
