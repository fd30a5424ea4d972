"""The table of faults: each computes something else than the definition, and than every other."""

from itertools import combinations

import pytest
import torch

from heddle.errors import HeddleError
from heddle.lessons.cases import cases, computed
from heddle.lessons.diagnosis import equal
from heddle.lessons.fault import Fault, changed
from heddle.lessons.faults import FAULTS, fault
from heddle.lessons.homework import CONTEXT, DEPTH, DIM, HEADS, HOMEWORK, VOCABULARY
from heddle.lessons.mixer import Attention
from tests.lectures.golden import ROWS
from tests.lessons import drawn

PART = {"attention": "attention", "block": "block", "model": "model", "loss": "model"}
NUMBERED = [each for each in FAULTS.values() if each.variants and not each.is_random]
PARTS = {part: [each for each in NUMBERED if PART[each.part] == part] for part in HOMEWORK}


def outputs(part: str, *faults: Fault) -> list[torch.Tensor | None]:
    return [computed(case, part, changed(*(each.variants[0] for each in faults))) for case in cases(part)]


def are_equal(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return all((a is None and b is None) or (a is not None and equal(a, b)) for a, b in zip(one, other, strict=True))


def test_the_sizes_of_tests_are_those_of_homework() -> None:
    assert (drawn.DIM, drawn.HEADS, drawn.VOCABULARY, drawn.DEPTH, drawn.CONTEXT) == (
        DIM,
        HEADS,
        VOCABULARY,
        DEPTH,
        CONTEXT,
    )


@pytest.mark.parametrize("part", HOMEWORK)
def test_every_fault_differs_from_the_definition_and_from_every_other(part: str) -> None:
    results = {each.name: outputs(part, each) for each in PARTS[part]}
    results["the definition"] = outputs(part)
    assert len(results) > 9
    same = [pair for pair in combinations(results, 2) if are_equal(results[pair[0]], results[pair[1]])]
    assert same == []


def test_every_variant_differs_from_the_definition() -> None:
    for each in NUMBERED:
        part = PART[each.part]
        right = outputs(part)
        for changes in each.variants:
            assert not are_equal([computed(case, part, changed(changes)) for case in cases(part)], right), each.name


@pytest.mark.parametrize("name", [name for name, each in FAULTS.items() if each.is_random])
def test_dropout_differs_from_call_to_call(name: str) -> None:
    part = PART[FAULTS[name].part]
    assert not are_equal(outputs(part, FAULTS[name]), outputs(part, FAULTS[name]))


def test_rows_of_lectures_exist() -> None:
    assert {row for each in FAULTS.values() for row in each.rows} <= ROWS


def test_an_unknown_fault_is_refused_with_the_nearest() -> None:
    with pytest.raises(HeddleError, match=r"no fault is called 'no msk'. Did you mean 'no mask'\?"):
        fault("no msk")


def test_a_mixer_has_a_fault_by_name() -> None:
    x = torch.randn(2, 5, DIM)
    torch.manual_seed(0)
    sound = Attention(DIM, heads=3)
    broken = Attention(DIM, heads=3, fault="no mask")
    broken.load_state_dict(sound.state_dict())
    later = x.clone()
    later[:, -1] += 1
    assert torch.equal(sound(x)[:, :-1], sound(later)[:, :-1])
    assert (broken(x)[:, :-1] - broken(later)[:, :-1]).abs().max() > 1e-3
