"""Texts to predict from, with what is left out of them on stderr."""

import sys
from collections.abc import Sequence

from heddle.cli.streams import input_lines, is_piped
from heddle.data.sources.files import STDIN
from heddle.errors import HeddleError, pluralize
from heddle.predict.inputs import EMPTY, Inputs, Items


def read_items(inputs: Inputs, arguments: Sequence[str], pairs: Sequence[str] = ()) -> Items:
    """Read arguments; without any, standard input if it is a pipe or a file.

    Texts of whitespace alone get no result; a line on stderr counts them.

    Raises:
        HeddleError: the text is missing, or a source cannot be read.
    """
    if not arguments and not is_piped():
        raise HeddleError(
            "nothing to read: give a text, a file with one text per line, a table, or - for standard input"
        )
    items = inputs.read(arguments or STDIN[:1], pairs, input_lines)
    for line in inputs.reader.notes.lines():
        tell(line)
    if all(items.empty):
        raise HeddleError(EMPTY)
    if empty := sum(items.empty):
        tell(f"{pluralize(empty, 'empty text')} of {len(items):,}: no result (null or NaN)")
    return items


def report_truncated_texts(truncated: int, count: int, context: int, pairs: bool = False) -> None:
    """Report on stderr how many texts were truncated to the context."""
    if truncated:
        effect = "the longer text of each pair is truncated" if pairs else "they are truncated"
        tell(f"texts longer than context = {context}: {truncated:,} of {count:,}; {effect}")


def tell(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr)
