"""One table says what every parameter is, to the optimizer, the accounts and the initial values."""

import pytest
import torch
from torch import nn

from heddle.account import weights
from heddle.config import TransformerConfig, preset, preset_names, sized
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.roles import OTHER, role, row_of
from heddle.train import Optimizer


@pytest.mark.parametrize("name", preset_names())
def test_every_parameter_of_every_preset_has_a_row(name: str) -> None:
    """One that was meant for it: matrices go to no row of vectors, vectors to none that draws numbers."""
    model = build(preset(name).shallow(), "meta")
    for each, parameter in model.named_parameters():
        row = row_of(each, parameter.dim())
        assert row is not OTHER, each
        assert (row.role == "vector") == (row.initial in ("zero", "one")), each


@pytest.mark.parametrize(
    ("name", "dimensions", "expected"),
    [
        ("decoder.blocks.3.mixer.q.weight", 2, "matrix"),
        ("decoder.blocks.3.mixer.q.bias", 1, "vector"),
        ("encoder.blocks.0.cross.o.weight", 2, "matrix"),
        ("decoder.blocks.0.mixer.weight", 3, "table"),  # a convolution's
        ("decoder.blocks.0.ffn.experts.down", 3, "matrix"),  # each of the stack
        ("decoder.blocks.0.ffn.experts.down_bias", 2, "vector"),
        ("decoder.blocks.0.ffn.router.weight", 2, "table"),
        ("decoder.relative.0.weight", 2, "table"),
        ("decoder.entry.positions.weight", 2, "table"),
        ("decoder.blocks.0.mixer.inner.gate.weight", 2, "matrix"),
        ("decoder.blocks.0.mixer.inner.mixer.q.weight", 3, "table"),
        ("decoder.blocks.0.ffn.inner.decay", 2, "table"),
        ("decoder.blocks.0.ffn.inner.decay", 1, "vector"),
        ("head.scores.weight", 2, "table"),
    ],
)
def test_roles(name: str, dimensions: int, expected: str) -> None:
    assert role(name, dimensions) == expected


class Odd(nn.Module):
    """A module of nobody's, with a matrix that no row names."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(2, 3))


def test_a_matrix_that_no_row_names_is_refused_by_all_three() -> None:
    from heddle.model import initialise

    config: TransformerConfig = sized(1, vocab_size=11, context=8, dim=16)
    model = build(config)
    model.odd = Odd()
    for use in (
        lambda: Optimizer(model, TrainConfig(), 1e-3, "fp32"),
        lambda: weights(model),
        lambda: initialise(model, config),
    ):
        with pytest.raises(HeddleError, match=r"^odd\.extra has 2 dimensions, but no row") as error:
            use()
        assert "\n" not in str(error.value)


def test_a_vector_that_no_row_names_is_a_vector() -> None:
    assert role("odd.scale", 1) == "vector"
    assert row_of("odd.scale", 1).component == "other"
