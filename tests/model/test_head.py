"""Heads: one vector for a sequence, whatever else is in its row."""

import pytest
import torch

from heddle.errors import HeddleError
from heddle.model.head import pool
from heddle.nn import Layout

WAYS = ["first", "last", "mean", "max"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("how", WAYS)
def test_only_real_tokens_are_pooled(how: str, side: str) -> None:
    """As each row alone; a row of padding gives 0, with a gradient of 0."""
    hidden = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    layout = Layout.padded([5, 2, 0], 5, side)
    found = pool(hidden, layout, how)
    for row in range(2):
        own = hidden[row, layout.segment[row] == 0]
        wanted = {"first": own[0], "last": own[-1], "mean": own.mean(0), "max": own.amax(0)}[how]
        torch.testing.assert_close(found[row], wanted)
    assert (found[2] == 0).all()
    found.square().sum().backward()
    assert (hidden.grad[layout.segment < 0] == 0).all()


@pytest.mark.parametrize("how", WAYS)
def test_packed_texts_have_no_common_vector(how: str) -> None:
    with pytest.raises(HeddleError, match="give each text a row of its own"):
        pool(torch.randn(1, 5, 4), Layout.packed([[3, 2]], 5), how)
