"""Lessons as pages: what their front matter holds, and copies without links into the site."""

import re
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.lessons.lesson import lesson, lessons, rows_in, split, standalone

FRONT = "---\nkernelspec:\n  name: python3\nlesson: 7\nminutes: 5\nrows: [L0-60, L0-61,\n  D-03]\n---\n\n"


def test_the_front_matter_of_a_page(tmp_path: Path) -> None:
    for number, name in ((7, "07-dropout.md"), (2, "02-vectors.md")):
        (tmp_path / name).write_text(FRONT.replace("lesson: 7", f"lesson: {number}") + "# 7. Dropout: *half* of it\n")
    (tmp_path / "numbers.md").write_text("# no lesson\n")
    first, second = lessons(tmp_path)
    assert (first.number, second.number) == (2, 7)
    assert second.title == "Dropout: *half* of it"
    assert (second.minutes, second.rows) == (5, ("L0-60", "L0-61", "D-03"))
    assert lesson(7, tmp_path) == second
    with pytest.raises(HeddleError, match="lesson 3 does not exist: choose one from 2 to 7"):
        lesson(3, tmp_path)


@pytest.mark.parametrize("text", ["# A title\n", FRONT, FRONT.replace("minutes: 5", "minutes: few") + "# A title\n"])
def test_a_page_without_what_it_needs(text: str, tmp_path: Path) -> None:
    (tmp_path / "07-dropout.md").write_text(text)
    with pytest.raises(HeddleError, match=r"07-dropout\.md: a page needs a heading"):
        lessons(tmp_path)


def test_ranges_of_rows_are_written_out() -> None:
    assert list(rows_in("L0-98 … L0-99, D-01, C-13")) == ["L0-98", "L0-99", "D-01", "C-13"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("[the guide](../look.md#heads)", "the guide (docs/look.md)"),
        ("[`heddle/nn/mask.py`](../../heddle/nn/mask.py)", "`heddle/nn/mask.py`"),
        ("[`Causal`](../../heddle/nn/mask.py)", "`Causal` (heddle/nn/mask.py)"),
        ("[lesson 5](05-mask.md), [masks](05-mask.md)", "lesson 5, masks (lesson 5)"),
        ("[here](#break-it)", "here"),
        ("![a map](../images/map.png)", "a map (docs/images/map.png)"),
        ("[Bloem](https://peterbloem.nl/blog)", "[Bloem](https://peterbloem.nl/blog)"),
        ("{term}`causal`, {term}`CLM <causal language model>`", "causal, CLM"),
        ("{math}`x^2`", "$x^2$"),
        ("`[a](b.md)` and f(x)[0](1)", "`[a](b.md)` and f(x)[0](1)"),
        ("(here)=\n## A heading", "## A heading"),
        ("```{note}\nRead [it](../look.md).\n```", "```{note}\nRead it (docs/look.md).\n```"),
        ("```python\n[a](b.md)\n```", "```python\n[a](b.md)\n```"),
        ("````{code-cell}\nprint('[a](b.md)')\n```\n````", "````{code-cell}\nprint('[a](b.md)')\n```\n````"),
    ],
)
def test_links_into_the_site_become_text(text: str, plain: str) -> None:
    assert standalone(f"{FRONT}{text}\n") == f"{FRONT}{plain}\n"


def test_copies_of_the_lessons_have_no_dead_links() -> None:
    for each in lessons():
        page = each.path.read_text(encoding="utf-8")
        copy = standalone(page)
        prose = re.sub(r"^(`{3,}).*?^\1$|`[^`\n]*`", "", copy, flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"\]\((?!https?:)[^)]*\)|\{\w+\}`", prose) == []
        assert split(copy)[0] == split(page)[0]
        assert copy.count("{code-cell}") == page.count("{code-cell}") > 0
