"""Positions: a table, and rotations written out as complex numbers."""

import pytest
import torch

from heddle.nn import Layout, LearnedPositions, Rotary
from heddle.nn.position import rotate


def table(context: int, dim: int) -> LearnedPositions:
    positions = LearnedPositions(context, dim)
    torch.nn.init.normal_(positions.weight)
    return positions


def test_a_position_has_its_row() -> None:
    positions = table(6, 3)
    layout = Layout.packed([[2, 3]], 5)
    assert torch.equal(positions(layout.position)[0], positions.weight[[0, 1, 0, 1, 2]])


def test_padding_beyond_the_table_is_no_crash() -> None:
    positions = table(4, 3)
    assert torch.equal(positions(torch.tensor([[2, 3, 4, 9]]))[0], positions.weight[[2, 3, 3, 3]])


@pytest.mark.parametrize("base", [10.0, 10_000.0, 1e6])
def test_a_rotation_is_a_product_of_complex_numbers(base: float) -> None:
    """(a + ib) · e^(i · position · base^(-2j/d)), with a from the first half of the channels and b from the second."""
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    layout = Layout.plain(2, 7)
    turned = rotate(x, Rotary(8, base)(layout))
    pairs = torch.complex(x[..., :4], x[..., 4:])
    frequency = base ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    angle = torch.arange(7, dtype=torch.float64)[:, None] * frequency
    wanted = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat((wanted.real, wanted.imag), -1), rtol=0, atol=1e-5)  # angles are fp32


def test_position_zero_is_not_turned_and_lengths_stay() -> None:
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    turned = rotate(x, Rotary(6)(Layout.plain(1, 5)))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-6)


def test_a_score_depends_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    rotary = Rotary(8, 100.0)

    def score(query: int, key: int) -> float:
        at = [Layout(torch.tensor([[place]]), torch.zeros(1, 1, dtype=torch.long), "packed") for place in (query, key)]
        return float((rotate(q, rotary(at[0])) * rotate(k, rotary(at[1]))).sum())

    assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)
    assert score(105, 100) == pytest.approx(score(5, 0), abs=1e-4)
    assert abs(score(6, 0) - score(5, 0)) > 1e-3


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (Layout.plain(3, 4), 1),
        (Layout.padded((4, 2, 1), 4), 1),
        (Layout.padded((4, 2, 1), 4, "left"), 3),
        (Layout.packed([[4], [2, 2], [1]], 4), 3),
    ],
    ids=lambda value: getattr(value, "form", value),
)
def test_angles_are_made_once_where_rows_share_them(layout: Layout, rows: int) -> None:
    cos, sin = Rotary(6)(layout)
    assert cos.shape == sin.shape == (rows, 1, 4, 3)
    assert cos.dtype == torch.float32
    every = layout.position[:, None, :, None] * 10_000 ** -(torch.arange(0, 6, 2) / 6)
    torch.testing.assert_close(cos.expand(3, 1, 4, 3), every.cos())


def test_rotation_keeps_the_precision_of_what_it_turns() -> None:
    rotation = Rotary(4)(Layout.plain(1, 3))
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert rotate(torch.randn(1, 1, 3, 4, dtype=dtype), rotation).dtype == dtype


def test_nothing_is_kept() -> None:
    """Angles are computed, so nothing has to come back to life after loading."""
    assert not Rotary(8).state_dict()
    assert not list(Rotary(8).buffers())
