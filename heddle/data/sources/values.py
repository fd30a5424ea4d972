"""What the values of a row mean: words, a label or several, a message of a conversation."""

import re
from ast import literal_eval
from collections.abc import Mapping
from math import isfinite
from typing import Any

from heddle.data.sources.notes import MalformedError
from heddle.data.sources.tables import TableRow, as_text

SEPARATOR, SIGNS = ",", ("|", ";")  # between several labels in a cell: the default, and what else may be meant
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}  # in the column of a label
BLANKS = " \t\r\n\v\f"  # what separates words; other blanks of Unicode, such as the no-break space, belong to them
SHARED = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Roles in records of ShareGPT, whose conversations are lists of `from` and `value`, and what they are called here."""


def message_of(message: Any) -> Any:
    """A message with its role and content, also if it is one of ShareGPT.

    A weight is left out where it says what heddle does: only answers are learned, each as much as the others.
    """
    if not isinstance(message, Mapping) or {"from", "value"} - set(message) or {"role", "content"} & set(message):
        return message
    role, weight = SHARED.get(message["from"], message["from"]), message.get("weight")
    usual = ("weight",) if role != "assistant" or weight in (None, 1) else ()
    others = {key: value for key, value in message.items() if key not in ("from", "value", *usual)}
    return {"role": role, "content": message["value"], **others}


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text, which blanks separate. A no-break space and other blanks of Unicode belong to words."""
    return tuple(word for word in re.split(f"[{BLANKS}]+", text) if word)


def words_of(value: Any, column: str, origin: str) -> tuple[str, ...]:
    """Words or their tags, from a list or from a text with blanks between them."""
    if isinstance(value, str):
        return split_words(as_text(value, column, origin))
    if not isinstance(value, list):
        fault = f"column {column!r} must have a list of words, or a text with blanks between them"
        raise MalformedError("null" if value is None else "wrong type", origin, fault)
    return tuple(as_text(str(word) if isinstance(word, int) else word, column, origin) for word in value)


def label_of(value: Any, column: str, origin: str) -> str:
    """A class or a number, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    missing = value is None or (isinstance(value, float) and not isfinite(value))  # pandas writes NaN where none is
    text = str(value) if isinstance(value, int | float) or missing else as_text(value, column, origin).strip()
    if not text or missing:
        fault = f"the label is {'null' if value is None else text or 'empty'}"
        raise MalformedError("no label", origin, fault, "leave the record out, or give it one")
    return text


def several_labels(row: TableRow, name: str, separator: str = SEPARATOR) -> tuple[str, ...]:
    """The labels of a row, each once, in order: a list, a cell with a separator between them, or a column of 1 and 0 for each.

    Args:
        row: the row.
        name: the column, or several columns with commas between them, unless one has this name.
        separator: what stands between labels in a cell; an empty cell has none.

    Raises:
        HeddleError: there is no such column, or its value is something else.
    """
    columns = [each.strip() for each in name.split(",")]
    if len(columns) > 1 and name not in row.values:
        return tuple(column for column in columns if _marked(row.get(column), column, row.origin))
    value = row.get(name)
    listed = _as_list(value) if isinstance(value, str) else value
    if isinstance(listed, str):
        listed = [part.strip() for part in listed.split(separator)]
        other = next((part for part in listed for sign in SIGNS if sign in part), None)
        if separator == SEPARATOR and other is not None:
            advice = "name what stands between them, such as separator='|', or give labels as a list"
            raise MalformedError("several labels", row.origin, f"the label {other!r} may be several: {advice}")
        listed = [part for part in listed if part]
    elif isinstance(listed, int) and not isinstance(listed, bool):
        listed = [listed]
    if not isinstance(listed, list | tuple):
        fault = f"column {name!r} must have a list of labels, or a text with {separator!r} between them"
        raise MalformedError("no labels", row.origin, fault, "[] or an empty text is none")
    return tuple(dict.fromkeys(label_of(each, name, row.origin) for each in listed))


def _as_list(text: str) -> Any:
    """A text that is a list as JSON or Python writes it, as pandas puts lists into CSV; else the text."""
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return text
    try:
        return literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _marked(value: Any, column: str, origin: str) -> bool:
    """Whether a column says that a row has its label."""
    text = str(value).strip().lower()
    if text not in MARKS:
        fault = f"column {column!r} has {value!r}"
        raise MalformedError("no mark", origin, fault, "the column of a label must have 1 or 0 in each row")
    return MARKS[text]
