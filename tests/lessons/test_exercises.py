"""What readers write is judged: right functions pass, and each known mistake is named."""

import pytest
import torch

from heddle.errors import HeddleError
from heddle.lessons.exercises import EXERCISES, check, exercise
from tests.lectures.golden import CASES, Case, same

NAMES = sorted(EXERCISES)


@pytest.mark.parametrize("name", NAMES)
def test_the_definition_is_right_and_nothing_is_not(name: str) -> None:
    assert EXERCISES[name].judge(EXERCISES[name].right) is None
    assert "right in" in EXERCISES[name].report(EXERCISES[name].right)
    assert "it returns nothing" in EXERCISES[name].report(lambda *arguments: None)


@pytest.mark.parametrize("name", NAMES)
def test_each_known_mistake_is_named_by_its_own_sentence(name: str) -> None:
    for sentence, mistake in EXERCISES[name].mistakes.items():
        assert EXERCISES[name].judge(mistake) == sentence


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_mistake_gets_the_first_case_that_differs(name: str) -> None:
    def raises(*arguments: object) -> None:
        raise KeyError("other")

    first = next(iter(EXERCISES[name].cases()))
    assert EXERCISES[name].judge(raises) == f"{first}: it raises KeyError: 'other'."
    assert first in str(EXERCISES[name].judge(lambda *arguments: "other"))


def test_a_line_tells_the_place_and_both_numbers() -> None:
    row = exercise("attention")
    assert row.judge(lambda q, k, v: row.right(q, k, v) + 1) == (
        "two queries, five keys: the number at [0, 0] is 2.30265, not 1.30265."
    )
    assert "the shape is [1, 2, 2], not [2, 2]" in str(row.judge(lambda q, k, v: row.right(q, k, v)[None]))
    assert row.judge(lambda q, k, v: row.right(q.float(), k.float(), v.float())) is None
    assert "is 1.30266, not 1.30265" in str(row.judge(lambda q, k, v: row.right(q, k, v) * (1 + 5e-6)))


def merged(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """A word's pieces after all steps."""
    step, pieces = exercise("merge step").right, list(word)
    while (longer := step(pieces, merges)) != pieces:
        pieces = longer
    return pieces


def test_the_definitions_are_the_worked_examples() -> None:
    five, table = Case("scaled_dot_product_five_keys"), Case("sinusoidal_positions").outputs
    same(exercise("attention").right(*(five.inputs[name] for name in "QKV")), five.outputs["output"])
    same(exercise("sinusoids").right(3, 4), table["pe_3x4"])
    same(exercise("sinusoids").right(10, 64)[1, :4], table["pe_10x64_row1_first4"])
    same(exercise("sinusoids").right(10, 64)[9, -2:], table["pe_10x64_row9_last2"])
    shifted, pieces = CASES["start_shift"]["outputs"], CASES["subword_examples"]
    row = torch.tensor([shifted["inputs"]])
    assert exercise("targets").right(row, torch.tensor([4])).tolist() == [shifted["targets_no_end"]]
    merges = [tuple(pair) for pair in pieces["inputs"]["bpe_merges"]]
    assert [merged(word, merges) for word in pieces["inputs"]["words"]] == pieces["outputs"]["bpe"]


def test_an_unknown_exercise_is_one_line() -> None:
    with pytest.raises(HeddleError, match=r"no exercise is called 'atention'.* 'attention'"):
        check("atention", abs)
