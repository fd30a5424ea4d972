"""Docstrings and comments as reStructuredText. In them, backticks are code, and nothing else is markup."""

import re
from collections.abc import Iterable, Sequence

NAME = re.compile(r"[A-Za-z_]\w{2,}(\.\w+)*(\(\))?")
SENTENCE_END = re.compile(r"(?<!et al)\. (?=[A-Z`])")
_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
_MARKUP = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def escaped(text: str) -> str:
    """A text whose asterisks, bars, backslashes and final underscores stand for themselves; code that is no name is literal."""
    parts = _CODE.split(text)
    return "".join(_code(part) if number % 2 else _MARKUP.sub(r"\\\1", part) for number, part in enumerate(parts))


def with_code(text: str) -> str:
    """A text in which paragraphs that are indented by four are code."""
    return "\n\n".join(
        f".. code-block:: python\n\n{indent(paragraph)}" if paragraph.startswith("    ") else escaped(paragraph)
        for paragraph in text.split("\n\n")
    )


def _code(span: str) -> str:
    """Names keep one backtick on each side: Sphinx links them."""
    text = span.strip("`")
    return f"`{text}`" if NAME.fullmatch(text) else f"``{text}``"


def prose(text: str) -> str:
    """A comment or a help text as one paragraph: its code as literal text, its lines joined."""
    return _CODE.sub(lambda code: f"``{code.group().strip('`')}``", escaped(" ".join(text.split())))


def first_sentence(text: str) -> str:
    """The first sentence of a text, on one line."""
    line = " ".join(text.partition("\n\n")[0].split())
    return SENTENCE_END.split(line)[0].rstrip(".") + "." if line else ""


def title(text: str, line: str = "=") -> str:
    """A heading. The levels are `=`, `-` and `~`."""
    return f"{text}\n{line * len(text)}\n"


def indent(text: str, by: int = 3) -> str:
    """A text moved to the right, for the body of a directive."""
    return "\n".join(" " * by + line if line else line for line in text.splitlines())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], widths: str = "auto", name: str = "") -> str:
    """A list-table: cells may be long, and code in them may have any sign."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}"]
    lines += [f"   :class: {name}"] * bool(name) + [""]
    for cells in (head, *rows):
        lines += [f"   {'* -' if number == 0 else '  -'} {cell}".rstrip() for number, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Literal text; nothing for an empty one."""
    return f"``{text}``" if text else ""
