"""Lesson pages: their parts, cells that compile, guarded numbers, names and files that exist, solutions that are right."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import heddle
from heddle.config import TransformerConfig
from heddle.lessons.exercises import EXERCISES
from tests.lectures.golden import ROWS
from tests.lessons.pages import LAST_LINES, NUMBERS, PARTS, Page, guarded_numbers, pages, sections

ROOT = Path(__file__).parents[2]
PAGES = pages()
CHEAP = 3
each_page = pytest.mark.parametrize("page", PAGES, ids=[page.path.stem for page in PAGES])


@each_page
def test_a_page_has_all_parts_in_their_order(page: Page) -> None:
    beginnings = [next((part for part in PARTS if heading.startswith(part)), heading) for heading in page.headings]
    assert beginnings == list(PARTS)
    for line in LAST_LINES:
        assert f"**{line}**" in page.text
    assert page.path.name.startswith(f"{page.front['lesson']:02}-")
    assert 5 <= page.front["minutes"] <= 20


@each_page
def test_its_rows_exist_and_the_text_names_each(page: Page) -> None:
    prose = page.text.split("---\n", 2)[2]
    assert page.front["rows"]
    for row in page.front["rows"]:
        assert row in ROWS, row
        assert row in prose, f"{page.path.name} does not name {row}"


@each_page
def test_the_first_cell_follows_the_idea_and_sets_one_thread_and_a_seed(page: Page) -> None:
    idea, _ = page.text.split("```{code-cell}", 1)
    assert len(idea.split("\n## The idea")[1].split()) > 50
    assert "torch.set_num_threads(1)" in page.cells[0].source
    assert "torch.manual_seed(" in page.cells[0].source


@each_page
def test_cells_are_short(page: Page) -> None:
    for cell in page.cells:
        assert len(cell.source.strip().splitlines()) <= 25, f"{page.path.name}:{cell.line} is too long"
        assert cell.tree.body


@each_page
def test_numbers_md_has_exactly_the_guarded_numbers(page: Page) -> None:
    names = page.guarded()
    assert len(names) == len(set(names)) > 0
    assert guarded_numbers(sections(NUMBERS.read_text())[page.front["lesson"]]) == names


@each_page
def test_what_it_imports_and_names_exists(page: Page) -> None:
    for cell in page.cells:
        for node in ast.walk(cell.tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("heddle"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
    for path in re.findall(r"`((?:heddle|tests|docs|recipes|scripts)/[\w./-]+)`", page.text):
        assert (ROOT / path).exists(), path


def test_every_exercise_is_in_its_lesson_and_its_solution_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {page.front["lesson"]: page for page in PAGES}
    for name, row in EXERCISES.items():
        if row.lesson not in numbers:
            continue
        page = numbers[row.lesson]
        calls = [cell for cell in page.cells if f'check("{name}"' in cell.source]
        assert [("hide-input" in cell.tags) for cell in calls] == [False, True], (
            f"{name}: first a stub, then a solution"
        )
        namespace: dict[str, Any] = {}
        page.cells[0].run(namespace)
        for cell in calls:
            capsys.readouterr()
            cell.run(namespace)
            line = capsys.readouterr().out
            assert ("right in" in line) == ("hide-input" in cell.tags), line


@pytest.mark.lecture("L0-06")
def test_what_the_linked_slides_tell_apart_is_told_apart() -> None:
    """Direct prediction reads the past itself, all of it or a window; a latent state has one size, however long the past is."""
    (page,) = (page for page in PAGES if page.front["lesson"] == 0)
    assert "https://dlsyscourse.org/slides/transformers.pdf" in page.text

    def remembered(kind: str, tokens: int, **options: int) -> tuple[str, int]:
        stack = {"depth": 1, "block": {"mixer": {"kind": kind, **options}}}
        model = heddle.build(TransformerConfig.of({"vocab_size": 8, "dim": 16, "context": 512, "decoder": stack}))
        cache = model.new_cache(1)
        model(torch.zeros(1, tokens, dtype=torch.long), cache=cache)
        state = cache.states[0].mixer
        return type(state).__name__, state.bytes()

    for kind, state in (("linear", "Rolling"), ("convolution", "Rolling"), ("recurrent", "Carry")):
        assert remembered(kind, 64) == remembered(kind, 256) == (state, remembered(kind, 64)[1])
    assert remembered("recurrent", 64)[1] < remembered("convolution", 64)[1]  # one vector, or the taps' vectors
    (_, some), (_, more) = (remembered("attention", tokens, heads=2) for tokens in (64, 256))
    assert more == 4 * some


def test_a_cheap_page_runs() -> None:
    (page,) = (page for page in PAGES if page.front["lesson"] == CHEAP)
    namespace: dict[str, Any] = {}
    for cell in page.cells:
        cell.run(namespace)
