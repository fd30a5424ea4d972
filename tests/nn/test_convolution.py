"""Convolution: the lectures' example, torch's own conv1d, and how far it sees."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config import ConvolutionConfig
from heddle.errors import HeddleError
from heddle.nn import Layout, Setting
from heddle.nn.convolution import Convolution
from heddle.nn.state import STATELESS, Rolling
from tests.lectures.golden import Case, same
from tests.nn.mixing import DIM, cache_for, close, filled, step, tokens, whole


def convolution(
    taps: int = 3, dilation: int = 1, bias: bool = True, causal: bool = True, dim: int = DIM
) -> Convolution:
    return Convolution(ConvolutionConfig(taps=taps, dilation=dilation, bias=bias), Setting(dim, causal))


@pytest.mark.lecture("L0-05")
@pytest.mark.parametrize("dilation", [1, 2])
def test_causal_convolution(dilation: int) -> None:
    case = Case("causal_convolution")
    mixer = convolution(2, dilation, bias=False, dim=2).double()
    mixer.load_state_dict({"weight": case.weights["K"].transpose(1, 2)})
    x = case.inputs["x"]
    same(whole(mixer, x[None])[0], case.outputs[f"dilation{dilation}"])
    cache = cache_for(mixer, 1)
    same(torch.cat([step(mixer, cache, x[None, t : t + 1])[0] for t in range(4)]), case.outputs[f"dilation{dilation}"])


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (4, 3), (2, 30)])
def test_it_is_torchs_convolution_padded_in_front(taps: int, dilation: int) -> None:
    mixer = filled(convolution(taps, dilation))
    x = tokens(2, 15).requires_grad_()
    y = whole(mixer, x)
    # torch's kernel is a correlation: its last tap is the token itself.
    weight = mixer.weight.permute(1, 2, 0).flip(2)
    expected = F.conv1d(F.pad(x.mT, ((taps - 1) * dilation, 0)), weight, mixer.bias, dilation=dilation).mT
    close(y, expected)
    inputs = [x, mixer.weight, mixer.bias]
    for actual, reference in zip(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (5, 2)])
def test_a_centred_one_looks_as_far_ahead_as_back(taps: int, dilation: int) -> None:
    mixer = filled(convolution(taps, dilation, causal=False))
    x = tokens(2, 15)
    weight = mixer.weight.permute(1, 2, 0).flip(2)
    expected = F.conv1d(x.mT, weight, mixer.bias, padding=taps // 2 * dilation, dilation=dilation).mT
    close(whole(mixer, x), expected)
    assert mixer.reach == taps // 2 * dilation


@pytest.mark.lecture("L0-05", "C-17")
@pytest.mark.parametrize("layers", range(1, 9))
def test_doubling_dilations_see_exponentially_far(layers: int) -> None:
    """2^(L+1) - 1 tokens with three taps: 31 after four layers, 511 after eight."""
    mixers = [convolution(3, 2**layer, bias=False, dim=1).double() for layer in range(layers)]
    x = torch.zeros(1, 600, 1, dtype=torch.float64, requires_grad=True)
    y: Tensor = x
    for mixer in mixers:
        torch.nn.init.ones_(mixer.weight)
        y = whole(mixer, y)
    (seen,) = torch.autograd.grad(y[0, -1, 0], x)
    field = 2 ** (layers + 1) - 1
    assert (seen[0, -field:, 0] > 0).all()
    assert (seen[0, :-field, 0] == 0).all()
    assert 1 + sum(mixer.reach for mixer in mixers) == field


def test_what_is_not_seen_may_be_anything() -> None:
    """Even nan: it is left out, not multiplied by 0."""
    mixer = filled(convolution(3))
    x, at = tokens(1, 8), Layout.padded([5], 8, "left")
    x[0, :3] = torch.nan
    assert whole(mixer, x, at)[0, 3:].isfinite().all()


def test_it_remembers_only_what_it_can_reach() -> None:
    state = convolution(3, 4).new_state()
    assert isinstance(state, Rolling)
    assert state.window == 8
    assert convolution(1, 4).new_state() is STATELESS
    assert convolution(1, causal=False).new_state() is STATELESS


def test_impossible_ones_are_refused() -> None:
    with pytest.raises(HeddleError, match="odd number of taps, got 4"):
        convolution(4, causal=False)
    with pytest.raises(HeddleError, match="looks ahead"):
        convolution(3, causal=False).new_state()
