"""Pages as notebooks: the same cells as jupytext reads."""

from pathlib import Path

import pytest

from heddle.lessons.lesson import PAGES
from heddle.lessons.notebook import DIRECTIVE, notebook

PAGE = """\
---
kernelspec:
  display_name: Python 3
  name: python3
lesson: 7
---
# Title

One.

+++

Two.

```{code-cell} ipython3
:tags: [hide-input]

print("one")

print("two")
```

```{code-cell} ipython3
---
tags: [raises-exception]
---
1 / 0
```

```python
not_run
```
"""


def sources(page: str) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook(page)["cells"]]


def test_cells_of_a_page() -> None:
    assert sources(PAGE) == [
        ("markdown", "# Title\n\nOne."),
        ("markdown", "Two."),
        ("code", 'print("one")\n\nprint("two")'),
        ("code", "1 / 0"),
        ("markdown", "```python\nnot_run\n```"),
    ]
    code = notebook(PAGE)["cells"][2]
    assert (code["outputs"], code["execution_count"]) == ([], None)


@pytest.mark.parametrize("page", [PAGE, *(path.read_text() for path in sorted(PAGES.glob("[0-9]*.md")))])
def test_they_are_the_cells_that_jupytext_reads(page: str) -> None:
    jupytext = pytest.importorskip("jupytext")
    cells = [(cell.cell_type, cell.source) for cell in jupytext.reads(page, fmt="md:myst").cells]
    for own, (kind, source) in zip(sources(page), cells, strict=True):
        if not DIRECTIVE.search(source):  # which a notebook shows as a quotation
            assert own == (kind, source)


def test_a_solution_is_folded() -> None:
    page = (PAGES / "03-attention.md").read_text()
    folded = [cell for cell in notebook(page)["cells"] if cell["metadata"].get("jupyter") == {"source_hidden": True}]
    assert ["def attention" in "".join(cell["source"]) for cell in folded] == [True]


def test_a_notebook_is_valid() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.from_dict(notebook(PAGE)))


def test_notes_become_quotations() -> None:
    page = "```{note}\nA *note*.\n\nMore.\n```\n\n````{tip} Title\n:class: small\n\nText.\n````\n"
    (cell,) = sources(page)
    assert cell == ("markdown", "> **Note**\n>\n> A *note*.\n>\n> More.\n\n> **Title**\n>\n> Text.")
    assert sources("```{math}\nx^2\n```\n") == [("markdown", "$$\nx^2\n$$")]


def test_every_page_of_this_package_is_a_notebook(tmp_path: Path) -> None:
    for path in PAGES.glob("[0-9]*.md"):
        kinds = [kind for kind, _ in sources(path.read_text(encoding="utf-8"))]
        assert {"code", "markdown"} == set(kinds), path
