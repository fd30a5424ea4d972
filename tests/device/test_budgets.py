"""Syncs and launches of a training step and of a decoded token stay within budgets.toml."""

import pytest

from tests.device import budgets
from tests.device.imitated import imitated
from tests.thorough import thorough


@imitated
@pytest.mark.parametrize("case", [*budgets.DECODINGS, *thorough(*budgets.TRAININGS)])
def test_no_budget_is_exceeded(case: str) -> None:
    text = budgets.excess(budgets.read()[case], budgets.measure(case))
    assert not text, f"{case}: {text}"


@imitated
def test_what_is_new_is_named_by_its_place() -> None:
    gpu = budgets.measure("decode: gpt2, greedy")
    counts = budgets.by_function(gpu)
    assert not budgets.excess(counts, gpu)
    assert counts["all"] == tuple(map(sum, zip(*[each for name, each in counts.items() if name != "all"], strict=True)))
    name = next(name for name, each in counts.items() if each[0] and name != "all")
    tight = {**counts, "all": (counts["all"][0] - 1, counts["all"][1]), name: (counts[name][0] - 1, counts[name][1])}
    text = budgets.excess(tight, gpu)
    assert text.startswith(f"{counts['all'][0]} syncs instead of {counts['all'][0] - 1}, more of them at:\n  {name}: ")
    assert "instead of" in text.splitlines()[1]
    assert "event" in text
    assert "launches" not in text


def test_the_table_has_every_case() -> None:
    assert list(budgets.read()) == budgets.CASES
