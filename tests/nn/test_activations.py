"""Activations: the formulas, their extrema and how far the approximation is off."""

from math import erf, sqrt
from typing import get_args

import pytest
import torch
from transformers.activations import ACT2FN

from heddle.config.layers import ActivationName
from heddle.convert.fields import ACTIVATIONS as PUBLISHED
from heddle.convert.fields import heddle_activation, published_activation
from heddle.errors import HeddleError
from heddle.nn.activations import ACTIVATIONS, SLOPES
from tests.models import AXES, LAYERED

FEEDS = [block.ffn for config in LAYERED for block in config.decoder.blocks]
DRAWN = {*AXES["activation"], *(getattr(ffn, "expert", ffn).activation for ffn in FEEDS)}


@pytest.mark.lecture("L0-68", "D-07")
def test_the_tanh_form_is_close_to_the_exact_gelu() -> None:
    z = torch.arange(-6, 6, 1e-4, dtype=torch.float64)
    difference = (ACTIVATIONS["gelu"](z) - ACTIVATIONS["gelu_tanh"](z)).abs()
    assert difference.max().item() == pytest.approx(4.7324e-4, abs=1e-8)
    assert z[difference.argmax()].abs().item() == pytest.approx(2.699, abs=1e-3)


@pytest.mark.lecture("L0-69")
@pytest.mark.parametrize("z", [0.5, -1.0, 3.0])
def test_gelu_has_an_accurate_erf(z: float) -> None:
    """gelu(√2 z) = z/√2 · (1 + erf z)."""
    known = {0.5: 0.520499877813, -1.0: -0.84270079295, 3.0: 0.999977909503}
    relative_error = ACTIVATIONS["gelu"](torch.tensor(sqrt(2) * z, dtype=torch.float64)).item() * sqrt(2) / z - 1
    assert relative_error == pytest.approx(known[z], abs=1e-12)
    assert relative_error == pytest.approx(erf(z), abs=1e-15)


@pytest.mark.lecture("L0-70")
def test_gelu_is_a_smooth_relu() -> None:
    z = torch.arange(-6, 6, 1e-5, dtype=torch.float64)
    curve = ACTIVATIONS["gelu"](z)
    assert curve.min().item() == pytest.approx(-0.1699712, abs=1e-7)
    assert z[curve.argmin()].item() == pytest.approx(-0.75179, abs=2e-5)
    ends = torch.tensor([-6.0, 6.0], dtype=torch.float64)
    assert (ACTIVATIONS["gelu"](ends) - ACTIVATIONS["relu"](ends)).abs().max() < 1e-7


def test_relu_squared() -> None:
    z = torch.tensor([-2.0, 0.0, 0.5, 3.0])
    assert ACTIVATIONS["relu_squared"](z).tolist() == [0.0, 0.0, 0.25, 9.0]


@pytest.mark.parametrize("name", sorted(set(ACT2FN) & set(PUBLISHED)))
def test_activations_are_those_of_transformers(name: str) -> None:
    z = torch.linspace(-9, 9, 181, dtype=torch.float64)
    actual = ACTIVATIONS[PUBLISHED[name]](z)
    torch.testing.assert_close(actual, ACT2FN[name](z), rtol=1e-6, atol=1e-12)
    assert actual.data_ptr() != z.data_ptr()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_activations_keep_shape_and_precision(name: str, dtype: torch.dtype) -> None:
    z = torch.randn(2, 3, dtype=dtype)
    values = ACTIVATIONS[name](z)
    assert (values.shape, values.dtype) == (z.shape, dtype)


def test_every_name_is_known_everywhere() -> None:
    """A new one needs a function, a derivative for experts, a place among the drawn models, and its name elsewhere, if any."""
    names = set(get_args(ActivationName))
    assert names == set(ACTIVATIONS) == set(SLOPES) == DRAWN
    named = names & set(PUBLISHED.values())
    assert {heddle_activation(published_activation(name), "activation") for name in named} == named
    assert not (names - named) & set(ACT2FN), "Hugging Face has an activation of this name: convert/fields.py"
    with pytest.raises(HeddleError, match="has no activation 'hardswish'"):
        published_activation("hardswish")
