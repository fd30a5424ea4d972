"""`heddle data show`, `heddle data lint` and `heddle data tokenize`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from heddle.cli.options import Json
from heddle.cli.output import RUNS, console, find_run, phases, pluralize, print_json, table
from heddle.cli.train import parse_config
from heddle.errors import HeddleError
from heddle.runs.lint import lint_run, lint_sources
from heddle.runs.show import ShownMask, ShownRow, ShownSource, show_step
from heddle.runs.tokenize import parse_part
from heddle.runs.tokenize import tokenize as tokenize_sources


def show(
    run: str, /, *, step: int = 1, rows: int = 1, length: int = 32, start: int | None = None, json: Json = False
) -> None:
    """Show a step's batch: tokens, prediction targets and attention masks.

    Parameters
    ----------
    run
        A run directory, or its name in runs/. It need not be trained, and is not changed.
    step
        The step, from 1.
    rows
        Maximum number of rows to show.
    length
        Number of positions to show per row.
    start
        First position to show, from 0. Defaults to the row's first target if that is not within the first `length` positions.
    """
    if Path(run).is_file():
        raise HeddleError(f"{run} is a file, not a run. Check files with `heddle data lint {run}`")
    shown_step = show_step(find_run(run), step, rows, length, start)
    if json:
        print_json({"run": str(find_run(run)), **asdict(shown_step)})
        return
    out = console()
    counts = f"{pluralize(shown_step.targets, 'target')} in {pluralize(shown_step.places, 'place')}"
    out.print(f"step {shown_step.step} of {shown_step.steps}: {shown_step.described}; {counts}")
    for number, row in enumerate(shown_step.rows):
        if row.source is not None:
            out.print(_table(row.source, {}, f"\nrow {number}, source"))
        predictions: dict[str, Sequence[Any]] = {
            "predicts": ["" if piece is None else repr(piece) for piece in row.predicts],
            "target": ["" if target is None else target for target in row.targets],
            "weight": row.weights,
        }
        out.print(_table(row, predictions if row.answer is None else {}, f"\nrow {number}", row.first))
        if row.answer is not None:
            _, name, weight = row.answer
            answer = f"predicts {name}, with weight {weight:g}" if name else "predicts nothing"
            out.print(f"row {number} {answer}")
    for mask in shown_step.masks:
        out.print("\n" + render_mask(mask))


def _table(row: ShownRow | ShownSource, predictions: Mapping[str, Sequence[Any]], title: str, start: int = 0) -> Table:
    """A table of a row's positions from `start` on, with their predictions."""
    columns = {
        "place": range(start, start + len(row.tokens)),
        "id": row.tokens,
        "token": [repr(piece) for piece in row.pieces],
        **predictions,
        "position": row.positions,
        "segment": row.segments,
    }
    return table(list(columns), zip(*columns.values(), strict=True), title)


def render_mask(mask: ShownMask) -> str:
    """A mask as text: a line per query, with █ for each key that it attends to."""
    layers = ", ".join(map(str, mask.layers))
    lines = ["".join("█" if allowed else "·" for allowed in row) for row in mask.seen]
    return "\n".join([f"{mask.stack}, layers {layers}, row 0: {mask.rule}", *lines])


def lint(*words: str, json: Json = False) -> None:
    """Find common problems in training data: duplicates, leakage, damaged characters, label errors, swapped languages, truncation.

    The exit code is 1 if there are errors, and 0 if there are at most remarks.

    Parameters
    ----------
    words
        Sources and key=value settings, as for `heddle train`; or one run, to check its tokens and batches instead.
    """
    if not words:
        raise HeddleError("give sources or a run: heddle data lint my.txt")
    run = _find_single_run(words)
    findings = lint_sources(parse_config(words)) if run is None else lint_run(run)
    if json:
        print_json({"of": list(words), "findings": [asdict(finding) for finding in findings]})
    else:
        out = console()
        for finding in sorted(findings, key=lambda finding: not finding.wrong):
            for line in finding.lines():
                out.print(line)
        if not findings:
            out.print("no problems found")
    if any(finding.wrong for finding in findings):
        raise SystemExit(1)


def tokenize(*words: str, part: str | None = None, join: list[str] | None = None, json: Json = False) -> None:
    """Tokenise texts or records into store=DIR, for `heddle train` with the same sources and settings.

    Tokens are made in pieces, in DIR.pieces. When the command is killed, repeat it: it makes the missing pieces. With --part,
    several processes or machines each make some. The store is byte for byte the one that a single process makes.

    Parameters
    ----------
    words
        Sources and key=value settings, as for `heddle train`; store=DIR is required.
    part
        Make only part i of n, such as 0/2 and 1/2. The store is written by a last command without --part, or with --join.
    join
        A store whose pieces another process or machine has made, or its directory of pieces; may be repeated. Writes the
        store from complete pieces alone, and names those that are missing.
    """
    out = console(json)
    with phases(out) as tell:
        result = tokenize_sources(parse_config(words), tell, None if part is None else parse_part(part), join or ())
    if json:
        print_json(result.to_dict())
    else:
        out.print(result.describe())


def _find_single_run(words: tuple[str, ...]) -> Path | None:
    """The run that a single argument names, if it is one: a directory with config.json, also in runs/."""
    if len(words) > 1 or "=" in words[0]:
        return None
    return next((path for path in (Path(words[0]), RUNS / words[0]) if (path / "config.json").is_file()), None)
