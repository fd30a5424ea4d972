"""Rules and masks: who sees whom, and when no mask has to be written out."""

import pytest
import torch

from heddle.nn import Cache, Causal, Everything, Layout, Mask
from heddle.nn.mask import Both, Rule


def plain(rows: int, length: int) -> Mask:
    layout = Layout.plain(rows, length)
    return Mask(Causal(), layout, layout)


@pytest.mark.lecture("L1-31")
def test_causal_is_the_lower_triangle() -> None:
    assert plain(1, 3).dense()[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    for length in (1, 7, 64):
        assert torch.equal(plain(1, length).dense()[0, 0], torch.ones(length, length, dtype=torch.bool).tril())


@pytest.mark.lecture("L0-90")
@pytest.mark.parametrize(("length", "count"), [(3, 6), (1024, 524_800)])
def test_how_many_pairs_are_allowed(length: int, count: int) -> None:
    assert plain(1, length).dense().sum() == count == length * (length + 1) // 2


@pytest.mark.lecture("L1-35", "D-47")
def test_one_mask_serves_all_rows_and_heads() -> None:
    dense = plain(5, 8).dense()
    assert dense.numel() == 8 * 8
    repeated = dense.expand(5, 3, 8, 8)
    assert repeated.stride()[:2] == (0, 0)


def test_everything_sees_everything() -> None:
    assert Mask(Everything(), Layout.plain(2, 3), Layout.plain(2, 5)).dense().expand(2, 1, 3, 5).all()


def test_rules_are_data() -> None:
    assert Causal() == Causal()
    assert Causal() != Everything()
    both = Causal() & Everything()
    assert both == Both(Causal(), Everything())
    query, key = torch.arange(4)[:, None], torch.arange(4)
    assert torch.equal(both(query, key), Causal()(query, key))


def test_segments_do_not_see_each_other_and_padding_sees_nothing() -> None:
    layout = Layout.packed([[2, 1]], 4)
    assert Mask(Causal(), layout, layout).dense()[0, 0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]
    assert Mask(Everything(), layout, layout).dense()[0, 0].int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


PAIRS = {
    "plain": (Layout.plain(2, 4), Layout.plain(2, 4)),
    "one token": (Layout.plain(2, 1), Layout.plain(2, 1)),
    "padded": (Layout.padded((4, 2), 4),) * 2,
    "left": (Layout.padded((4, 2), 4, "left"),) * 2,
    "packed": (Layout.packed([[1, 3], [4]], 4),) * 2,
    "cross": (Layout.plain(2, 3), Layout.plain(2, 4)),
    "padded keys": (Layout.plain(2, 4), Layout.padded((4, 2), 4)),
    "padded otherwise": (Layout.padded((4, 4), 4), Layout.padded((4, 2), 4)),
    "first call": Cache([], 2).advance((4, 4)),
    "first call, ragged": Cache([], 2).advance((4, 2)),
}


@pytest.mark.parametrize("rule", [Causal(), Everything(), Causal() & Causal()], ids=str)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_the_form_promises_is_true(rule: Rule, pair: tuple[Layout, Layout]) -> None:
    """The fast paths never look into tensors; here the tensors are looked into."""
    mask = Mask(rule, *pair)
    allowed = mask.dense().expand(2, 1, pair[0].width, pair[1].width)
    real = (pair[0].segment >= 0)[:, None, :, None]
    if mask.is_causal():
        triangle = torch.ones(pair[0].width, pair[1].width, dtype=torch.bool).tril()
        assert torch.equal(allowed, triangle & real)
    if mask.is_open():
        assert allowed.all()


@pytest.mark.parametrize(
    ("rule", "pair", "causal", "is_open"),
    [
        (Causal(), "plain", True, False),
        (Causal(), "one token", True, True),
        (Causal(), "padded", True, False),
        (Causal(), "first call", True, False),
        (Causal(), "first call, ragged", True, False),
        (Causal(), "left", False, False),
        (Causal(), "packed", False, False),
        (Causal(), "padded keys", False, False),
        (Everything(), "plain", False, True),
        (Everything(), "cross", False, True),
        (Everything(), "padded", False, False),
        (Causal() & Causal(), "plain", False, False),
    ],
    ids=str,
)
def test_the_fast_paths_are_taken(rule: Rule, pair: str, causal: bool, is_open: bool) -> None:
    mask = Mask(rule, *PAIRS[pair])
    assert (mask.is_causal(), mask.is_open()) == (causal, is_open)
