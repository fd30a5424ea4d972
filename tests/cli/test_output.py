"""What people read: texts as they are, whatever is in them."""

import io
from typing import Any

import pytest
from rich.console import Console

from heddle.cli.output import console, phases, table

# To rich, the end of a style, a style, and an emoji.
ODD = ["[/INST]", "[unused1]", ":x:"]


def printed(shown: Any, **settings: Any) -> str:
    page = io.StringIO()
    Console(file=page, width=80, **settings).print(shown)
    return page.getvalue()


def test_tables_show_texts_as_they_are() -> None:
    rows = [[text, number] for text, number in zip(ODD, (1, 22, 333), strict=True)]
    lines = printed(table(["[/INST]", "[red]n"], rows, "[/INST] :x:")).splitlines()
    assert [line.rstrip() for line in lines] == [
        "[/INST] :x:",
        "[/INST]    [red]n",
        "[/INST]         1",
        "[unused1]      22",
        ":x:           333",
    ]


def test_headers_are_bold_and_titles_slanted() -> None:
    title, header, row = printed(table(["column"], [["warp"]], "title"), force_terminal=True).splitlines()
    assert title.startswith("\x1b[3mtitle")
    assert header.startswith("\x1b[1mcolumn")
    assert "\x1b" not in row


def test_lines_show_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """On the console itself, and where a spinner repeats them."""
    line = " ".join(ODD)
    out = console()
    out.print(line)
    with phases(out) as tell:
        tell(line)
    assert capsys.readouterr().out == f"{line}\n{line}\n"
