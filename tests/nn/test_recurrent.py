"""Recurrent mixers: torch's own GRU and LSTM, and where the state is reset."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import RecurrentConfig
from heddle.nn import Layout, Setting
from heddle.nn.recurrent import Recurrent
from tests.nn.mixing import DIM, cache_for, close, filled, step, tokens, whole

HIDDEN = 5
cells = pytest.mark.parametrize("cell", ["gru", "lstm"])


def recurrent(cell: Any, bias: bool = True) -> Recurrent:
    return filled(Recurrent(RecurrentConfig(cell=cell, hidden=HIDDEN, bias=bias), Setting(DIM)))


def torchs(mixer: Recurrent, cell: str) -> nn.GRU | nn.LSTM:
    """torch's own with the same weights."""
    bias = mixer.input.bias is not None
    own = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](DIM, HIDDEN, bias=bias, batch_first=True).double()
    kinds = ("weight", "bias") if bias else ("weight",)
    own.load_state_dict(
        {f"{kind}_{name}_l0": getattr(module, kind)
         for kind in kinds for name, module in (("ih", mixer.input), ("hh", mixer.carry))}
    )  # fmt: skip
    return own


@cells
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_torchs_own(cell: str, bias: bool) -> None:
    mixer = recurrent(cell, bias)
    witness = torchs(mixer, cell)
    x = tokens(3, 11).requires_grad_()
    y, expected = whole(mixer, x), mixer.output(witness(x)[0])
    close(y, expected)
    kinds = ("weight", "bias") if bias else ("weight",)
    actual = torch.autograd.grad(
        y.square().sum(), [x, *(getattr(part, kind) for kind in kinds for part in (mixer.input, mixer.carry))]
    )
    reference = torch.autograd.grad(
        expected.square().sum(),
        [x, *(getattr(witness, f"{kind}_{name}_l0") for kind in kinds for name in ("ih", "hh"))],
    )
    for one, other in zip(actual, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@cells
def test_what_it_carries_is_what_torch_hands_on(cell: str) -> None:
    mixer = recurrent(cell)
    x, cache = tokens(3, 7), cache_for(mixer, 3)
    step(mixer, cache, x)
    _, last = torchs(mixer, cell)(x)
    for actual, reference in zip(cache.states[0].mixer.buffers, last if cell == "lstm" else (last,), strict=True):
        close(actual, reference[0])


@cells
def test_padding_has_output_zero_and_leaves_the_state(cell: str) -> None:
    mixer = recurrent(cell)
    x, cache, alone = tokens(2, 7), cache_for(mixer, 2), cache_for(mixer, 1)
    y = step(mixer, cache, x, [7, 3])
    assert (y[1, 3:] == 0).all()
    step(mixer, alone, x[1:, :3])
    for actual, reference in zip(cache.states[0].mixer.buffers, alone.states[0].mixer.buffers, strict=True):
        close(actual[1:], reference)


@cells
def test_padding_inside_a_document_does_not_begin_it_anew(cell: str) -> None:
    mixer = recurrent(cell)
    x = tokens(1, 9)
    segment = torch.tensor([[-1, 0, 0, -1, 0, 1, -1, -1, 1]])
    position = torch.tensor([[0, 0, 1, 0, 2, 0, 0, 0, 1]])
    y = whole(mixer, x, Layout(position, segment, "packed"))
    close(y[:, [1, 2, 4]], whole(mixer, x[:, [1, 2, 4]]))
    close(y[:, [5, 8]], whole(mixer, x[:, [5, 8]]))


@cells
def test_the_state_may_be_of_any_width(cell: Any) -> None:
    mixer = filled(Recurrent(RecurrentConfig(cell=cell, hidden=11), Setting(DIM)))
    assert whole(mixer, tokens(2, 4)).shape == (2, 4, DIM)
    cache = cache_for(mixer, 2)
    step(mixer, cache, tokens(2, 4))
    assert cache.bytes() == {"gru": 1, "lstm": 2}[cell] * 2 * 11 * 8
    step(mixer, cache, tokens(2, 40))
    assert cache.bytes() == {"gru": 1, "lstm": 2}[cell] * 2 * 11 * 8


@cells
def test_a_long_memory_is_not_rounded_away(cell: Any) -> None:
    """In bf16 an error does not grow along the tokens: what is carried is fp32, though every product is bf16."""
    torch.manual_seed(0)
    exact = Recurrent(RecurrentConfig(cell=cell), Setting(32))
    for parameter in exact.parameters():
        nn.init.normal_(parameter, std=0.2)
    with torch.no_grad():  # a state that forgets slowly: sums of many small numbers
        exact.input.bias[32:64] = 6.0
        if cell == "lstm":
            exact.input.bias[:32] = -5.0
    rounded = copy.deepcopy(exact).bfloat16()
    x = torch.randn(2, 600, 32)
    with torch.no_grad():
        actual, result = whole(exact, x), whole(rounded, x.bfloat16()).float()
        errors = (result - actual).abs().mean(-1).mean(0) / actual.std()
        assert errors[-50:].mean() < 0.01
        state = cache_for(rounded, 2)
        pieces = [step(rounded, state, piece) for piece in x.bfloat16().split(300, dim=1)]
        assert {buffer.dtype for buffer in state.states[0].mixer.buffers} == {torch.float32}
        torch.testing.assert_close(torch.cat(pieces, dim=1).float(), result, rtol=0.02, atol=0.02)


@cells
def test_no_token_is_no_error(cell: str) -> None:
    mixer, cache = recurrent(cell), None
    assert whole(mixer, tokens(2, 0)).shape == (2, 0, DIM)
    x, cache = tokens(2, 5), cache_for(mixer, 2)
    pieces = [step(mixer, cache, piece) for piece in (x[:, :0], x[:, :3], x[:, 3:3], x[:, 3:])]
    close(torch.cat(pieces, dim=1), whole(mixer, x))
