"""Every kernel computes the definition, wherever the tokens stand, in every precision."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from heddle.nn import KERNELS, Causal, Layout, Mask
from heddle.nn.kernels import Blockwise, Kernel
from heddle.nn.mask import Rule
from tests.kernels import RULES, SCALE, Place, called, definition, outcome, with_itself
from tests.laws.laws import close
from tests.lectures.golden import watched

PLACES = {
    "whole": with_itself(Layout.whole(2, 9)),
    "one token": with_itself(Layout.whole(2, 1)),
    "right-padded": with_itself(Layout.padded((9, 4, 0), 9)),
    "left-padded": with_itself(Layout.padded((9, 4, 0), 9, "left")),
    "packed": with_itself(Layout.packed([[6, 3], [1, 3, 4], []], 9)),
    "first call": called((5, 5)),
    "first call, ragged": called((9, 4, 0)),
    "next tokens": called((4, 4), (3, 3)),
    "next token": called((4, 4), (1, 1)),
    "next tokens, ragged": called((4, 9, 0), (3, 1, 0)),
    "padded keys": (Layout.whole(2, 5), Layout.padded((5, 3), 5)),
    "keys padded in front": (Layout.whole(2, 5), Layout.padded((5, 3), 5, "left")),
    "fewer queries": (Layout.whole(3, 3), Layout.padded((11, 4, 1), 11)),
    "more queries": (Layout.whole(2, 11), Layout.padded((3, 0), 3)),  # in a window the last ones see nothing
}
LONG = {
    "130": with_itself(Layout.whole(1, 130)),
    "257": with_itself(Layout.whole(1, 257)),
    "257, right-padded": with_itself(Layout.padded((257, 129, 1), 257)),
    "130, packed": with_itself(Layout.packed([[100, 30], [1, 128]], 130)),
    "800": with_itself(Layout.whole(1, 800)),  # here `auto` changes its mind
}
# A cap of the scores, the rows of a bias that is added to them, and whether each head has a sink.
Change = tuple[float | None, int, bool]
CHANGES: dict[str, Change] = {
    "": (None, 0, False), "cap": (1.5, 0, False), "bias": (None, 1, False), "cap, bias of each row": (1.5, -1, False),
    "sinks": (None, 0, True), "cap, bias, sinks": (1.5, 1, True),
}  # fmt: skip
# Stated tolerances. The definition gets the same rounded inputs; what is left is rounding inside.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Defined:
    """What the definition makes of some tensors, and which queries see nothing; the same for every kernel."""

    mask: Mask
    tensors: list[Tensor]
    weight: Tensor
    sinks: Tensor | None
    dead: Tensor
    expected: dict[str, Tensor]


@cache
def defined(place: str, rule: Rule, dtype: torch.dtype, change: Change) -> Defined:
    """With two query heads to a key head and values of another width."""
    cap, bias, sunk = change
    mask, generator = Mask(rule, *{**PLACES, **LONG}[place]), torch.Generator().manual_seed(6)
    rows, queries, keys = mask.queries.rows, mask.queries.width, mask.keys.width
    shapes = [(rows, 4, queries, 6), (rows, 2, keys, 6), (rows, 2, keys, 3)]
    shapes += [(rows if bias < 0 else bias, 4, queries, keys)] if bias else []
    weight = torch.randn(rows, 4, queries, 3, generator=generator, dtype=torch.float64)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64).to(dtype) if sunk else None
    expected = definition(mask, tensors, weight, cap, sinks)
    names = ("output", "dq", "dk", "dv", *(["dbias"] if bias else []), *(["dsinks"] if sunk else []))
    dead = ~mask.dense().any(-1).expand(rows, 4, queries)
    return Defined(mask, tensors, weight, sinks, dead, {name: expected[name] for name in names})


def kernel_keeps_to_the_mask(
    kernel: Kernel, place: str, rule: Rule, dtype: torch.dtype, change: Change = CHANGES[""]
) -> None:
    """Outputs and gradients are those of the definition; padding gives exact zeros."""
    case = defined(place, rule, dtype, change)
    outputs = outcome(kernel, case.mask, case.tensors, case.weight, case.sinks)
    actual, expected = dict(zip(case.expected, outputs, strict=True)), case.expected
    assert (actual["output"][case.dead] == 0).all()
    assert (actual["dq"][case.dead] == 0).all()
    for name, tensor in actual.items():
        scale = max(1.0, float(expected[name].abs().max()))
        close(tensor.double() / scale, expected[name] / scale, TOLERANCES[dtype], name)


@pytest.mark.lecture("D-10", "L2-17")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_to_the_mask(
    name: str, place: str, rule: Rule, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that cut a sequence into blocks take several for a short one."""
    cap, _, sunk = change
    if name == "sdpa" and (cap is not None or sunk):
        return  # refused: tests/nn/test_kernels.py
    monkeypatch.setattr("heddle.nn.kernels.plain.BLOCK", 4)
    kernel = Blockwise(SCALE, cap=cap, block=4) if name == "blockwise" else KERNELS[name](SCALE, cap=cap)
    # What changes scores has its own test of rounding in bf16: tests/nn/test_kernels.py.
    for dtype in TOLERANCES if change == CHANGES[""] else (torch.float64, torch.float32):
        kernel_keeps_to_the_mask(kernel, place, rule, dtype, change)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("place", LONG)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_to_the_mask_over_several_blocks(kernel: str, place: str, dtype: torch.dtype) -> None:
    kernel_keeps_to_the_mask(KERNELS[kernel](SCALE), place, Causal(), dtype)


@pytest.mark.lecture("L0-91", "D-35")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_references_taps_are_those_of_the_definition(place: Place, change: Change) -> None:
    """Scores, -inf where the mask blocks, and weights: scaled, then capped, then with the bias, then masked."""
    (cap, bias, sunk), mask = change, Mask(RULES["sliding"], *place)
    rows, queries, keys = mask.queries.rows, mask.queries.width, mask.keys.width
    shapes = [(rows, 2, queries, 3), (rows, 2, keys, 3), (rows, 2, keys, 3)]
    shapes += [(rows if bias < 0 else bias, 2, queries, keys)] if bias else []
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    kernel = KERNELS["reference"](SCALE, cap=cap)
    with watched(scores=kernel.scores, weights=kernel.weights) as seen:
        sinks = torch.tensor([0.5, -1.0], dtype=torch.float64) if sunk else None
        kernel(*tensors[:3], replace(kernel.lower(mask, *tensors[3:]), sinks=sinks))
    expected = definition(mask, tensors, torch.ones(1), cap, sinks)
    assert (seen["weights"][~mask.dense().expand_as(seen["weights"])] == 0).all()
    for name in ("scores", "weights"):
        torch.testing.assert_close(seen[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_mask_is_its_questions(place: Place, rule: Rule) -> None:
    """`dense` is what `__call__` answers for every pair of slots."""
    mask = Mask(rule, *place)
    rows, queries, keys = mask.queries.rows, mask.queries.width, mask.keys.width
    dense = mask.dense().expand(rows, 1, queries, keys)
    row, query, key = (
        each.flatten() for each in torch.meshgrid(*map(torch.arange, (rows, queries, keys)), indexing="ij")
    )
    answers = [bool(mask(*pair)) for pair in zip(row, query, key, strict=True)]
    assert answers == dense[row, 0, query, key].tolist()
