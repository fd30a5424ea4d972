"""Layouts: positions and segments of every kind of batch."""

import pytest
import torch
from torch.utils import _pytree

from heddle.errors import HeddleError
from heddle.nn import Layout


def lists(layout: Layout) -> tuple[list[list[int]], list[list[int]], str]:
    return layout.position.tolist(), layout.segment.tolist(), layout.form


def test_plain() -> None:
    layout = Layout.whole(2, 3)
    assert lists(layout) == ([[0, 1, 2]] * 2, [[0, 0, 0]] * 2, "whole")
    assert (layout.rows, layout.width) == (2, 3)


@pytest.mark.lecture("L0-22")
def test_texts_of_one_length_stand_at_the_same_positions() -> None:
    first, second = Layout.whole(2, 5).position
    assert torch.equal(first, second)


def test_padding_after_the_end() -> None:
    assert lists(Layout.padded((2, 3, 0), 3)) == ([[0, 1, 2]] * 3, [[0, 0, -1], [0, 0, 0], [-1, -1, -1]], "padded")


def test_padding_before_the_start() -> None:
    """Real tokens count from 0; nothing has a negative position."""
    rows = lists(Layout.padded((2, 3, 0), 3, "left"))
    assert rows == ([[0, 0, 1], [0, 1, 2], [0, 0, 0]], [[-1, 0, 0], [0, 0, 0], [-1, -1, -1]], "packed")


def test_documents_side_by_side() -> None:
    rows = lists(Layout.packed([[2, 1], [4], []], 4))
    assert rows == (
        [[0, 1, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]],
        [[0, 0, 1, -1], [0, 0, 0, 0], [-1, -1, -1, -1]],
        "packed",
    )


def test_what_does_not_fit_is_refused() -> None:
    for made in (
        lambda: Layout.padded([3, 10], 4),
        lambda: Layout.padded([3, -1], 4),
        lambda: Layout.padded([3, 10], 4, "left"),
        lambda: Layout.packed([[2], [3, 3]], 4),
    ):
        with pytest.raises(HeddleError, match=r"row 1 has .* tokens, but the layout's width is 4"):
            made()


LAYOUTS = [Layout.whole(4, 3), Layout.padded((2, 3, 0, 1), 3), Layout.packed([[2, 1], [3], [], [1]], 3)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.form)
def test_splitting_loses_no_row(layout: Layout) -> None:
    for rows in (1, 2, 3, 4):
        pieces = layout.split(rows)
        assert all(piece.form == layout.form for piece in pieces)
        assert torch.equal(torch.cat([piece.position for piece in pieces]), layout.position)
        assert torch.equal(torch.cat([piece.segment for piece in pieces]), layout.segment)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.form)
def test_layouts_are_trees_and_can_move(layout: Layout) -> None:
    leaves, form = _pytree.tree_flatten(layout)
    assert len(leaves) == 2
    assert lists(_pytree.tree_unflatten(leaves, form)) == lists(layout)
    moved = layout.to("meta")
    assert moved.position.is_meta
    assert moved.segment.is_meta
    assert moved.form == layout.form
