"""The table of what breaks: every lesson has a row, its numbers are guarded, and the written figures are far enough apart."""

import re

import pytest

from tests.lessons.breaks import APART, BREAKS, TABLE, spreads_apart
from tests.lessons.pages import pages, sections


def test_every_lesson_has_a_mistake_and_its_numbers_are_guarded() -> None:
    guarded = {page.front["lesson"]: set(page.guarded()) for page in pages()}
    assert {row.lesson for row in TABLE} == set(guarded)
    for row in TABLE:
        assert {name for name in (row.right, row.broken) if isinstance(name, str)} <= guarded[row.lesson], row


def test_the_written_page_has_each_row_with_spreads_enough() -> None:
    parts = sections(BREAKS.read_text())
    for lesson, part in parts.items():
        rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
        assert [row[0] for row in rows] == [row.mistake for row in TABLE if row.lesson == lesson]
        for mistake, _, _, apart in rows:
            assert apart == "no spread" or float(re.sub(",", "", apart)) >= APART, mistake


@pytest.mark.parametrize(
    ("right", "broken", "apart"),
    [
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], float("inf")),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0),
        ([0.0, 1.0, 2.0], [9.0, 10.0, 11.0], 9),
        ([0.0, 0.0, 0.0], [8.0, 10.0, 12.0], 5),  # the larger spread of the two counts
    ],
)
def test_the_distance_is_counted_in_the_larger_spread(right: list[float], broken: list[float], apart: float) -> None:
    assert spreads_apart(right, broken) == pytest.approx(apart)
