"""Parsing the values of a row: words, one or several labels, messages of a conversation."""

import re
from ast import literal_eval
from collections.abc import Mapping
from math import isfinite
from typing import Any

from heddle.data.sources.notes import MalformedError
from heddle.data.sources.tables import TableRow, as_text

SEPARATOR, SIGNS = ",", ("|", ";")  # between several labels in a cell: the default, and others that files use
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}  # in the column of a label
BLANKS = " \t\r\n\v\f"  # separate words; other Unicode whitespace, such as the no-break space, belongs to words
SHARED = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Roles of ShareGPT, whose conversations are lists of `from` and `value`, and their names in heddle."""


def message_of(message: Any) -> Any:
    """Convert a message of ShareGPT to one with a role and a content; other messages are returned unchanged.

    A weight is dropped if it agrees with what heddle does: only answers are learned, all with the same weight.
    """
    if not isinstance(message, Mapping) or {"from", "value"} - set(message) or {"role", "content"} & set(message):
        return message
    role, weight = SHARED.get(message["from"], message["from"]), message.get("weight")
    usual = ("weight",) if role != "assistant" or weight in (None, 1) else ()
    others = {key: value for key, value in message.items() if key not in ("from", "value", *usual)}
    return {"role": role, "content": message["value"], **others}


def split_words(text: str) -> tuple[str, ...]:
    """Split a text at whitespace. The no-break space and other Unicode whitespace belong to words."""
    return tuple(word for word in re.split(f"[{BLANKS}]+", text) if word)


def words_of(value: Any, column: str, origin: str) -> tuple[str, ...]:
    """Words or their tags, from a list or from a text with spaces between them."""
    if isinstance(value, str):
        return split_words(as_text(value, column, origin))
    if not isinstance(value, list):
        fault = f"column {column!r} must have a list of words, or a text with spaces between them"
        raise MalformedError("null" if value is None else "wrong type", origin, fault)
    return tuple(as_text(str(word) if isinstance(word, int) else word, column, origin) for word in value)


def label_of(value: Any, column: str, origin: str) -> str:
    """A class or a number, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    missing = value is None or (
        isinstance(value, float) and not isfinite(value)
    )  # pandas writes NaN for a missing value
    text = str(value) if isinstance(value, int | float) or missing else as_text(value, column, origin).strip()
    if not text or missing:
        fault = f"the label is {'null' if value is None else text or 'empty'}"
        raise MalformedError("no label", origin, fault, "leave the record out, or give it one")
    return text


def several_labels(row: TableRow, name: str, separator: str = SEPARATOR) -> tuple[str, ...]:
    """The distinct labels of a row, in order: from a list, a cell with a separator, or one column of 1 and 0 for each label.

    Args:
        row: the row.
        name: the column; or several columns separated by commas, unless a column has this very name.
        separator: separates labels in a cell; an empty cell has no labels.

    Raises:
        HeddleError: there is no such column, or its value is something else.
    """
    columns = [each.strip() for each in name.split(",")]
    if len(columns) > 1 and name not in row.values:
        return tuple(column for column in columns if _marked(row.get(column), column, row.origin))
    value = row.get(name)
    labels = _as_list(value) if isinstance(value, str) else value
    if isinstance(labels, str):
        labels = [part.strip() for part in labels.split(separator)]
        ambiguous = next((part for part in labels for sign in SIGNS if sign in part), None)
        if separator == SEPARATOR and ambiguous is not None:
            advice = "set their separator, such as separator='|', or give labels as a list"
            raise MalformedError("several labels", row.origin, f"the label {ambiguous!r} may be several: {advice}")
        labels = [part for part in labels if part]
    elif isinstance(labels, int) and not isinstance(labels, bool):
        labels = [labels]
    if not isinstance(labels, list | tuple):
        fault = f"column {name!r} must have a list of labels, or a text with {separator!r} between them"
        raise MalformedError("no labels", row.origin, fault, "[] or an empty text means no labels")
    return tuple(dict.fromkeys(label_of(each, name, row.origin) for each in labels))


def _as_list(text: str) -> Any:
    """Parse a text that is a list in JSON or Python syntax, as pandas writes lists into CSV; other texts are returned unchanged."""
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return text
    try:
        return literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _marked(value: Any, column: str, origin: str) -> bool:
    """Whether the column of a label marks a row as having this label."""
    text = str(value).strip().lower()
    if text not in MARKS:
        fault = f"column {column!r} has {value!r}"
        raise MalformedError("no mark", origin, fault, "the column of a label must have 1 or 0 in each row")
    return MARKS[text]
