"""The chunked cross-entropy is torch's, in values and gradients, and never holds the full logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.model.device import LOGITS_BYTES
from heddle.model.head import Scores
from heddle.tasks import cross_entropy as chunked
from heddle.tasks.loss import chunk_rows

Case = tuple[Tensor, Tensor, Tensor, Tensor, int]


def cross_entropy(
    hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int, chunk: int | None = None
) -> Tensor:
    """The loss of a head that is a product and nothing else."""
    return chunked(hidden, targets, weights, Scores(table, vocab_size), chunk)[0]


def case(
    rows: int = 13, dim: int = 6, vocab_size: int = 11, extra: int = 5, dtype: torch.dtype = torch.float64
) -> Case:
    """Hidden vectors, a table with padded entries, targets, and weights of which some are zero."""
    draw = torch.Generator().manual_seed(rows * 100 + vocab_size)
    hidden = torch.randn(rows, dim, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    table = torch.randn(vocab_size + extra, dim, generator=draw, dtype=torch.float64).requires_grad_()
    targets = torch.randint(vocab_size, (rows,), generator=draw)
    weights = torch.rand(rows, generator=draw) * (torch.arange(rows) % 3 > 0)
    return hidden, table, targets, weights, vocab_size


def full(hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int) -> Tensor:
    """The same from all logits at once, by torch."""
    logits = (hidden @ table.T)[:, :vocab_size]
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum()


def gradients(loss: Callable[..., Tensor], inputs: Case, *more: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden, table = inputs[0].detach().clone().requires_grad_(), inputs[1].detach().clone().requires_grad_()
    value = loss(hidden, table, *inputs[2:], *more)
    (3 * value).backward()  # a factor from above must arrive
    assert hidden.grad is not None
    assert table.grad is not None
    return value.detach(), hidden.grad, table.grad


@pytest.mark.lecture("L1-24", "L2-59")
@pytest.mark.parametrize("chunk", [1, 4, 5, 13, 100, None])
def test_it_is_cross_entropy(chunk: int | None) -> None:
    for ours, reference in zip(gradients(cross_entropy, case(), chunk), gradients(full, case()), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 4, 13, None])
@pytest.mark.parametrize("vocab_size", [1, 11, 100])
def test_in_few_passes_it_is_the_same(vocab_size: int, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr("heddle.tasks.loss_chunk.saves_passes", lambda device: True)
    inputs = case(vocab_size=vocab_size)
    for ours, reference in zip(gradients(cross_entropy, inputs, chunk), gradients(full, inputs), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(*inputs, chunk), full(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("few", [False, True], ids=["many passes", "few passes"])
def test_bf16_rounds_the_gradient_of_a_sure_target_once(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """p of 0.999 is 1 in bf16, and p - 1 would be 0."""
    monkeypatch.setattr("heddle.tasks.loss_chunk.saves_passes", lambda device: few)
    hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.bfloat16, requires_grad=True)
    table = torch.tensor([[7.0, 1.0], [0.0, -6.0]], dtype=torch.bfloat16)
    exact = hidden.detach().double().requires_grad_()
    full(exact, table.double(), torch.tensor([0, 0]), torch.ones(2), 2).backward()
    cross_entropy(hidden, table, torch.tensor([0, 0]), torch.ones(2), 2).backward()
    torch.testing.assert_close(hidden.grad.double(), exact.grad, rtol=3 * 2**-9, atol=0)


@given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 6), st.integers(0, 3))
def test_it_is_cross_entropy_at_every_size(rows: int, chunk: int, vocab_size: int, extra: int) -> None:
    drawn = case(rows=rows, vocab_size=vocab_size, extra=extra)
    for ours, reference in zip(gradients(cross_entropy, drawn, chunk), gradients(full, drawn), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("chunk", [4, None])
def test_a_bias_and_a_cap_are_part_of_it(cap: float | None, chunk: int | None) -> None:
    """Scores with a bias (BERT) and bounded ones (Gemma 2), against torch's full logits, all three gradients."""
    hidden, table, targets, weights, vocab_size = case()
    bias = torch.linspace(-1, 1, table.shape[0], dtype=torch.float64).requires_grad_()
    logits = F.linear(hidden, table, bias)[:, :vocab_size]
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
    loss, _ = chunked(hidden, targets, weights, Scores(table, vocab_size, bias, cap), chunk)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    leaves = (hidden, table, bias)
    pairs = zip(torch.autograd.grad(2 * loss, leaves), torch.autograd.grad(2 * expected, leaves), strict=True)
    for ours, reference in pairs:
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize(("smoothing", "z"), [(0.1, 0.0), (0.0, 1e-2), (0.3, 1e-2)])
def test_smoothed_targets_and_small_normalisers(cap: float | None, smoothing: float, z: float) -> None:
    """Torch's label smoothing over the real entries, and PaLM's z-loss by its formula; what is reported stays the same."""
    hidden, table, targets, weights, vocab_size = case()
    bias = torch.linspace(-1, 1, table.shape[0], dtype=torch.float64).requires_grad_()
    logits = F.linear(hidden, table, bias)[:, :vocab_size]
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    smoothed = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    expected = ((smoothed + z * logits.logsumexp(-1) ** 2) * weights).sum()
    leaves = (hidden, table, bias)
    gradients = torch.autograd.grad(expected, leaves, retain_graph=True)
    for chunk in (4, None):
        loss, plain = chunked(hidden, targets, weights, Scores(table, vocab_size, bias, cap), chunk, smoothing, z)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
        unchanged = (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
        torch.testing.assert_close(plain, unchanged, rtol=0, atol=1e-12)
        assert not plain.requires_grad
        for ours, reference in zip(torch.autograd.grad(loss, leaves), gradients, strict=True):
            torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)
        with torch.no_grad():
            alone = chunked(hidden, targets, weights, Scores(table, vocab_size, bias, cap), chunk, smoothing, z)
        torch.testing.assert_close(torch.stack(alone), torch.stack([loss, plain]).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [4, None])
def test_scoring_gives_the_same_value(chunk: int | None) -> None:
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(*case(), chunk), full(*case()), rtol=0, atol=1e-12)


@pytest.mark.lecture("L0-86")
def test_padded_entries_have_no_gradient() -> None:
    _, _, table = gradients(cross_entropy, case(), 4)
    assert torch.equal(table[11:], torch.zeros(5, 6, dtype=torch.float64))
    assert (table[:11] != 0).any()


def test_weight_zero_takes_a_place_out() -> None:
    """Whatever stands there."""
    hidden, table, targets, weights, vocab_size = case()
    other = torch.where((weights == 0)[:, None], 7.0, hidden)
    assert torch.equal(
        cross_entropy(hidden, table, targets, weights, vocab_size, 4),
        cross_entropy(other, table, targets, weights, vocab_size, 4),
    )


def test_the_table_gradient_is_added_up_in_fp32() -> None:
    """Working in bf16 it is nearer to the truth than sums in bf16 would be, many times over."""
    hidden, table, targets, weights, vocab_size = case(rows=4096, dtype=torch.bfloat16)
    exact = gradients(full, (hidden.double(), table, targets, weights, vocab_size))[2]
    table = table.float()
    ours = gradients(cross_entropy, (hidden, table, targets, weights, vocab_size), 16)[2]
    assert ours.dtype == torch.float32
    rounded = torch.zeros_like(table, dtype=torch.bfloat16)
    for start in range(0, 4096, 16):
        part = slice(start, start + 16)
        rounded += gradients(cross_entropy, (hidden[part], table, targets[part], weights[part], vocab_size))[
            2
        ].bfloat16()
    assert (ours - exact).abs().max() < (rounded - exact).abs().max() / 5


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any one result held."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


def test_the_full_logits_never_exist() -> None:
    rows, vocab_size, dim, chunk = 1024, 480, 8, 64
    drawn = case(rows=rows, vocab_size=vocab_size, extra=32, dim=dim)
    most = max(chunk * (vocab_size + 32), rows * dim, (vocab_size + 32) * dim)
    with Largest() as largest:
        gradients(cross_entropy, drawn, chunk)
    assert largest.numbers <= most
    with Largest() as largest, torch.no_grad():
        cross_entropy(*drawn, chunk)
    assert largest.numbers <= most
    with Largest() as largest:
        gradients(full, drawn)
    assert largest.numbers == rows * (vocab_size + 32)  # so they would have been seen


@pytest.mark.parametrize("vocabulary", [1, 257, 50_304, 10**9])
@pytest.mark.parametrize("positions", [1, 63, 4096, 65_537])
def test_a_chunk_fits_into_its_bytes(positions: int, vocabulary: int) -> None:
    rows = chunk_rows(positions, vocabulary)
    assert 1 <= rows <= positions
    assert rows <= 64 or rows * vocabulary * 4 <= LOGITS_BYTES
