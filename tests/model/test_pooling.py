"""One vector per text: only its own real tokens count, whatever else is in its row."""

import pytest
import torch

from heddle.errors import HeddleError
from heddle.model.pooling import pool, unpack_rows
from heddle.nn import Layout

KINDS = ["first", "last", "mean", "max", "mean_sqrt", "weighted_mean"]


def wanted_of(own: torch.Tensor, how: str) -> torch.Tensor:
    """One vector of those of a text, by definition."""
    weights = torch.arange(1, len(own) + 1, dtype=own.dtype)[:, None]
    return {
        "first": own[0],
        "last": own[-1],
        "mean": own.mean(0),
        "max": own.amax(0),
        "mean_sqrt": own.sum(0) / len(own) ** 0.5,
        "weighted_mean": (own * weights).sum(0) / weights.sum(),
    }[how]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", KINDS)
def test_only_real_tokens_are_pooled(how: str, side: str) -> None:
    """As each row alone; a row of padding gives 0, with a gradient of 0."""
    hidden = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    layout = Layout.padded([5, 2, 0], 5, side)
    pooled = pool(hidden, layout, how)
    for row in range(2):
        own = hidden[row, layout.segment[row] == 0]
        torch.testing.assert_close(pooled[row], wanted_of(own, how))
    assert (pooled[2] == 0).all()
    pooled.square().sum().backward()
    assert (hidden.grad[layout.segment < 0] == 0).all()


@pytest.mark.parametrize("how", KINDS)
def test_packed_texts_have_no_common_vector(how: str) -> None:
    with pytest.raises(HeddleError, match="put each text in its own row"):
        pool(torch.randn(1, 5, 4), Layout.packed([[3, 2]], 5), how)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_of_a_row_come_apart(how: str, side: str) -> None:
    """Pooled apart, texts that share rows have the vectors of each alone; an absent text has 0, and padding no gradient."""
    lengths = [[3, 2, 1], [4]]
    hidden = torch.randn(2, 8, 4, dtype=torch.float64, requires_grad=True)
    layout = Layout.packed(lengths, 8)
    if side == "left":  # padding in front
        layout = layout.map_tensors(lambda tensor: tensor.roll(2, 1))
    pooled = pool(*unpack_rows(hidden, layout), how).unflatten(0, (2, 3))
    for row, row_lengths in enumerate(lengths):
        for number in range(3):
            own = hidden[row, layout.segment[row] == number]
            if number >= len(row_lengths):
                assert (pooled[row, number] == 0).all()
                continue
            torch.testing.assert_close(pooled[row, number], wanted_of(own, how))
    pooled.square().sum().backward()
    assert (hidden.grad[layout.segment < 0] == 0).all()


def test_single_texts_are_already_apart() -> None:
    hidden, layout = torch.randn(2, 5, 4), Layout.padded([5, 2], 5)
    alone, its = unpack_rows(hidden, layout)
    assert torch.equal(its.segment, layout.segment)
    assert torch.equal(alone[layout.real], hidden[layout.real])
