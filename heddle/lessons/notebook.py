"""A page of a lesson as a Jupyter notebook: MyST's cells as nbformat 4."""

import re
from collections.abc import Iterator
from typing import Any

from heddle.lessons.lesson import FENCE, split

CELL = re.compile(r"^(`{3,})\{code(?:-cell)?\}[^\n]*\n(.*?)^\1`*[ \t]*\n?", re.MULTILINE | re.DOTALL)
OPTIONS = re.compile(r"(?:^:[\w-]+:[^\n]*\n)+\n?|^---\n.*?^---\n\n?", re.MULTILINE | re.DOTALL)
BREAK = re.compile(r"^\+\+\+[^\n]*\n", re.MULTILINE)
DIRECTIVE = re.compile(r"^(`{3,}|:{3,})\{([\w-]+)\} ?([^\n]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook(page: str) -> dict[str, Any]:
    """A page as the JSON of a notebook."""
    return {"cells": list(_cells(split(page)[1])), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 4}


def _cells(body: str) -> Iterator[dict[str, Any]]:
    start = 0
    for match in CELL.finditer(body):
        yield from _texts(body[start : match.start()])
        options = OPTIONS.match(match[2])
        cell = _cell("code", match[2][options.end() :] if options else match[2])
        if options and "hide-input" in options.group():  # a solution: Jupyter folds its code
            cell["metadata"] = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
        yield cell
        start = match.end()
    yield from _texts(body[start:])


def _texts(text: str) -> Iterator[dict[str, Any]]:
    """Markdown cells. A line of `+++` ends one."""
    for part in BREAK.split(text):
        if part.strip():
            yield _cell("markdown", DIRECTIVE.sub(_quoted, part))


def _quoted(match: re.Match[str]) -> str:
    """A note, a tip or another directive as a quotation, which every notebook shows."""
    _, name, title, body = match.groups()
    if FENCE.match(body) or name in ("math", "figure", "image"):
        return f"$$\n{body.strip()}\n$$" if name == "math" else match[0]
    title = title.strip() or name.replace("-", " ").capitalize()
    text = (OPTIONS.sub("", body, count=1) if body.startswith((":", "---")) else body).strip()
    return "\n".join(f"> {line}".rstrip() for line in (f"**{title}**", "", *text.splitlines()))


def _cell(kind: str, source: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": source.strip("\n").splitlines(keepends=True)}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell
