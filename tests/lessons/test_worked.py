"""The worked example of the lessons is that of the lectures."""

from heddle.lessons.definition import block
from heddle.lessons.worked import MATRICES, VECTORS, worked, worked_weights
from tests.lectures.golden import CASES, Case, same


def test_its_numbers_are_those_of_the_lectures() -> None:
    case = CASES["block_pre_norm"]
    names = {name: case["weights"].get(name, case["inputs"]["X"]) for name in (*MATRICES, *VECTORS)}
    assert names == MATRICES | VECTORS


def test_its_block_has_the_lectures_output() -> None:
    (tokens,) = worked("Z")
    same(block(tokens[None], worked_weights(), heads=2)[0], Case("block_pre_norm").outputs["output"])
