"""Rules and masks: who sees whom, and when no mask has to be written out."""

import pytest
import torch

from heddle.nn import KERNELS, Causal, Everything, Layout, Mask
from heddle.nn.mask import Both, Rule, Window
from tests.kernels import called, plain_mask


@pytest.mark.lecture("L1-31")
def test_causal_is_the_lower_triangle() -> None:
    assert plain_mask(1, 3).dense()[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    for length in (1, 7, 64):
        assert torch.equal(plain_mask(1, length).dense()[0, 0], torch.ones(length, length, dtype=torch.bool).tril())


@pytest.mark.lecture("L0-90")
@pytest.mark.parametrize(("length", "count"), [(3, 6), (1024, 524_800)])
def test_how_many_pairs_are_allowed(length: int, count: int) -> None:
    assert plain_mask(1, length).dense().sum() == count == length * (length + 1) // 2


@pytest.mark.lecture("L1-35", "D-47")
def test_one_mask_serves_all_rows_and_heads() -> None:
    dense = plain_mask(5, 8).dense()
    assert dense.numel() == 8 * 8
    repeated = dense.expand(5, 3, 8, 8)
    assert repeated.stride()[:2] == (0, 0)
    assert KERNELS["reference"].lower(plain_mask(5, 8)).allowed.numel() == 8 * 8, "and so a kernel is handed it"


def test_everything_sees_everything() -> None:
    assert Mask(Everything(), Layout.whole(2, 3), Layout.whole(2, 5)).dense().expand(2, 1, 3, 5).all()


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
    "whole": (Layout.whole(2, 4), Layout.whole(2, 4)),
    "one token": (Layout.whole(2, 1), Layout.whole(2, 1)),
    "padded": (Layout.padded((4, 2), 4),) * 2,
    "left": (Layout.padded((4, 2), 4, "left"),) * 2,
    "packed": (Layout.packed([[1, 3], [4]], 4),) * 2,
    "cross": (Layout.whole(2, 3), Layout.whole(2, 4)),
    "padded keys": (Layout.whole(2, 4), Layout.padded((4, 2), 4)),
    "padded otherwise": (Layout.padded((4, 4), 4), Layout.padded((4, 2), 4)),
    "first call": called((4, 4)),
    "first call, ragged": called((4, 2)),
    "newest": called((4, 4), (1, 1), multiple=1),
    "next": called((4, 4), (1, 1)),
}


RULES = [Causal(), Everything(), Causal() & Causal(), Causal() & Window(2), Window(9) & Causal(), Window(2)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_the_form_promises_is_true(rule: Rule, pair: tuple[Layout, Layout]) -> None:
    """The fast paths never look into tensors; here the tensors are looked into."""
    mask = Mask(rule, *pair)
    allowed = mask.dense().expand(2, 1, pair[0].width, pair[1].width)
    real = (pair[0].segment >= 0)[:, None, :, None]
    if mask.is_causal():
        triangle = torch.ones(pair[0].width, pair[1].width, dtype=torch.bool).tril()
        assert torch.equal(allowed, triangle & real)
    if mask.window() is not None:
        ones = torch.ones(pair[0].width, pair[1].width, dtype=torch.bool)
        assert torch.equal(allowed, ones.tril() & ones.triu(1 - mask.window()) & real)
    if mask.is_open():
        assert allowed.all()


@pytest.mark.parametrize(
    ("rule", "pair", "causal", "is_open"),
    [
        (Causal(), "whole", True, False),
        (Causal(), "one token", True, True),
        (Causal(), "padded", True, False),
        (Causal(), "first call", True, False),
        (Causal(), "first call, ragged", True, False),
        (Causal(), "left", False, False),
        (Causal(), "packed", False, False),
        (Causal(), "padded keys", False, False),
        (Everything(), "whole", False, True),
        (Everything(), "cross", False, True),
        (Everything(), "padded", False, False),
        (Causal(), "newest", False, True),
        (Everything(), "newest", False, True),
        (Causal() & Window(2), "newest", False, False),
        (Causal(), "next", False, False),
        (Causal() & Causal(), "whole", False, False),
    ],
    ids=str,
)
def test_the_fast_paths_are_taken(rule: Rule, pair: str, causal: bool, is_open: bool) -> None:
    mask = Mask(rule, *PAIRS[pair])
    assert (mask.is_causal(), mask.is_open()) == (causal, is_open)


def test_a_window_looks_less_than_its_size_away() -> None:
    layout = Layout.whole(1, 5)
    sliding = Mask(Causal() & Window(2), layout, layout).dense()[0, 0].int().tolist()
    assert sliding == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    both = Mask(Window(2), layout, layout).dense()[0, 0].int().tolist()
    assert both == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]


def test_a_window_counts_positions_not_slots() -> None:
    """The two documents of a row have windows of their own, and a cached row counts from its own start."""
    packed = Layout.packed([[3, 2]], 5)
    assert Mask(Causal() & Window(2), packed, packed).dense()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    seen = Mask(Causal() & Window(2), *called((4, 2), (1, 1))).dense()
    assert [row[0, 0].nonzero().flatten().tolist() for row in seen] == [[3, 4], [1, 2]]


@pytest.mark.parametrize(
    ("rule", "pair", "window"),
    [
        (Causal() & Window(2), "whole", 2),
        (Window(3) & Causal(), "padded", 3),
        (Causal() & Window(100), "whole", 100),
        (Causal() & Window(2), "first call, ragged", 2),
        (Causal() & Window(2), "left", None),
        (Causal() & Window(2), "packed", None),
        (Causal() & Window(2), "cross", None),
        (Window(2), "whole", None),
        (Causal(), "whole", None),
    ],
    ids=str,
)
def test_a_sliding_window_is_known_as_a_band(rule: Rule, pair: str, window: int | None) -> None:
    assert Mask(rule, *PAIRS[pair]).window() == window


def test_a_window_longer_than_the_sequence_stays_a_window() -> None:
    mask = Mask(Causal() & Window(100), *PAIRS["whole"])
    assert torch.equal(mask.dense(), plain_mask(1, 4).dense())
    assert not mask.is_causal()
    assert not mask.is_open()
    assert not Mask(Window(100), *PAIRS["whole"]).is_open()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_part_is_cut_out_of_the_whole(rule: Rule, pair: tuple[Layout, Layout]) -> None:
    mask = Mask(rule, *pair)
    whole = mask.dense()
    assert whole.shape[0] == mask.rows
    for start, stop, first, last in ((0, 1, 0, 1), (0, pair[0].width, 1, pair[1].width), (0, 1, 0, pair[1].width)):
        assert torch.equal(mask.tile(start, stop, first, last), whole[:, :, start:stop, first:last])


@pytest.mark.parametrize(
    ("rule", "pair"),
    [
        (Causal(), (Layout.whole(2, 300), Layout.whole(2, 300))),
        (Causal() & Window(40), (Layout.whole(2, 300), Layout.whole(2, 300))),
        (Everything(), (Layout.padded((300, 7), 300),) * 2),
        (Causal(), (Layout.packed([[130, 100], [300]], 300),) * 2),
        (Everything(), (Layout.whole(2, 20), Layout.whole(2, 300))),
    ],
    ids=["causal", "window", "padded", "packed", "cross"],
)
def test_blocks_are_empty_where_nothing_is_seen_and_full_where_all_is(rule: Rule, pair: tuple[Layout, Layout]) -> None:
    """FlexAttention's tiles of 128 by 128 against the dense mask, and its rule against the dense mask pair by pair."""
    mask = Mask(rule, *pair)
    dense, blocks = mask.dense(), mask.blocks()
    assert tuple(blocks.shape) == (mask.rows, 1, pair[0].width, pair[1].width)
    kinds = blocks.to_dense()  # 1 where any pair of the tile may be seen
    for row in range(mask.rows):
        for down in range(kinds.shape[2]):
            for right in range(kinds.shape[3]):
                tile = dense[row, 0, down * 128 : (down + 1) * 128, right * 128 : (right + 1) * 128]
                assert bool(kinds[row, 0, down, right]) == bool(tile.any())
    draw = torch.Generator().manual_seed(0)
    rows, query, key = (torch.randint(n, (200,), generator=draw) for n in (mask.rows, pair[0].width, pair[1].width))
    assert torch.equal(blocks.mask_mod(rows, torch.zeros_like(rows), query, key), dense[rows, 0, query, key])
