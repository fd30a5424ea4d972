"""Kernels: what each is handed, what `auto` takes, exact zeros, and what is never held."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from heddle.nn import KERNELS, Cache, Causal, Everything, Layout, Mask, masked_softmax
from heddle.nn.kernels import BLOCK, PLAIN_UP_TO, Kernel, fastest

kernels = pytest.mark.parametrize("name", KERNELS)


def causal(rows: int, length: int) -> Mask:
    layout = Layout.plain(rows, length)
    return Mask(Causal(), layout, layout)


def inputs(rows: int, heads: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, rows, heads, length, 4, dtype=dtype)
    return q, k, v


@pytest.mark.lecture("L0-92")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_blocked_weights_are_exactly_zero(dtype: torch.dtype) -> None:
    scores = (20 * torch.randn(2, 3, 9, 9)).to(dtype)
    allowed = causal(1, 9).dense()
    weights = masked_softmax(scores, allowed)
    assert weights.dtype == dtype
    assert (weights.masked_select(~allowed) == 0).all()
    assert (weights.masked_select(allowed) >= 0).all()
    torch.testing.assert_close(weights.double().sum(-1), torch.ones(2, 3, 9).double(), rtol=0, atol=2e-2)


@kernels
@pytest.mark.lecture("L0-92")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_blocked_values_count_for_exactly_nothing(name: str, dtype: torch.dtype) -> None:
    """However large they are: infinity times a small weight would be noticed."""
    q, k, v = inputs(1, 2, 6, dtype)
    kernel = KERNELS[name](0.5)
    lowered = kernel.lower(causal(1, 6))
    before = kernel(q, k, v, lowered)
    k[:, :, 4:], v[:, :, 4:] = 1e4, 1e30
    assert torch.equal(kernel(q, k, v, lowered)[:, :, :4], before[:, :, :4])


@pytest.mark.lecture("L1-30", "D-53")
def test_masking_and_scaling_commute() -> None:
    scores, allowed = torch.randn(4, 6, 6), causal(1, 6).dense()[0]
    blocked = ~allowed
    first = (scores.masked_fill(blocked, -torch.inf) * 0.37).softmax(-1)
    last = (scores * 0.37).masked_fill(blocked, -torch.inf).softmax(-1)
    assert torch.equal(first, last)
    assert torch.equal(masked_softmax(scores * 0.37, allowed), last)


def test_a_row_without_keys_has_weights_and_gradients_of_zero() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    allowed = torch.tensor([[False, False, False], [True, False, True]])
    weights = masked_softmax(scores, allowed)
    assert (weights[0] == 0).all()
    weights.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [0, 0, 0]
    assert scores.grad[1, 1] == 0
    assert scores.grad[1, 0] != 0


def test_large_scores_do_not_overflow() -> None:
    for value in (1e4, -1e4, 3e38):
        scores = torch.full((2, 3), value)
        assert torch.equal(masked_softmax(scores, torch.ones(2, 3, dtype=torch.bool)), torch.full((2, 3), 1 / 3))


@kernels
@pytest.mark.lecture("L1-35", "D-47")
def test_masks_are_not_copied_for_each_head(name: str) -> None:
    packed = Layout.packed([[3, 4], [3, 4]], 7)
    allowed = KERNELS[name].lower(Mask(Causal(), packed, packed)).allowed
    assert allowed is not None
    assert allowed.shape == (2, 1, 7, 7)
    scores = torch.randn(2, 3, 7, 7)
    assert torch.equal(masked_softmax(scores, allowed), masked_softmax(scores, allowed.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("name", ["plain", "sdpa", "auto"])
def test_whole_sequences_need_no_written_mask(name: str) -> None:
    lower = KERNELS[name].lower
    assert lower(causal(2, 5)).allowed is None
    assert lower(causal(2, 5)).causal
    assert lower(causal(2, 5)).dead is None
    padded = Layout.padded((5, 2), 5)
    assert lower(Mask(Causal(), padded, padded)).allowed is None
    everything = lower(Mask(Everything(), Layout.plain(2, 5), Layout.plain(2, 9)))
    assert (everything.causal, everything.allowed, everything.dead) == (False, None, None)


@pytest.mark.parametrize("name", KERNELS)
def test_one_next_token_of_equal_rows_shares_one_mask(name: str) -> None:
    cache = Cache([], 3)
    cache.advance((4, 4, 4))
    lowered = KERNELS[name].lower(Mask(Causal(), *cache.advance((1, 1, 1))))
    assert lowered.allowed is not None
    assert lowered.allowed.shape == (1, 1, 1, 64)
    assert lowered.allowed.sum() == 5


@pytest.mark.parametrize(
    ("device", "keys", "wanted"),
    [
        ("cpu", 1, "plain"),
        ("cpu", PLAIN_UP_TO["cpu"], "plain"),
        ("cpu", PLAIN_UP_TO["cpu"] + 1, "sdpa"),
        ("cuda", 1, "sdpa"),
        ("mps", 64, "sdpa"),
        ("meta", 64, "sdpa"),
    ],
)
def test_auto_is_a_table(device: str, keys: int, wanted: str) -> None:
    assert fastest(device, keys) == wanted


@pytest.mark.parametrize("length", [16, PLAIN_UP_TO["cpu"] + 1])
def test_auto_runs_what_it_lowered_for(length: int) -> None:
    kernel = KERNELS["auto"](0.5)
    ran = []
    for part in (kernel.plain, kernel.sdpa):
        part.register_forward_hook(lambda module, given, output: ran.append(type(module)))
    lowered = kernel.lower(causal(1, length))
    assert lowered.kernel == fastest("cpu", length)
    kernel(*inputs(1, 2, length), lowered)
    assert ran == [KERNELS[lowered.kernel]]


class Sizes(TorchDispatchMode):
    """Records every operation and the size of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        self.operations.append(str(function))
        sizes = [leaf.numel() for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result


@contextmanager
def recorded() -> Iterator[Sizes]:
    with Sizes() as sizes:
        yield sizes


def operations(kernel: Kernel, heads: int, length: int) -> Sizes:
    q, k, v = inputs(1, heads, length)
    lowered = kernel.lower(causal(1, length))
    with torch.no_grad(), recorded() as sizes:
        kernel(q, k, v, lowered)
    return sizes


@kernels
@pytest.mark.lecture("L0-46")
def test_heads_are_computed_together(name: str) -> None:
    kernel = KERNELS[name](0.5)
    assert operations(kernel, 2, 8).operations == operations(kernel, 7, 8).operations
    q, k, v = inputs(2, 5, 8)
    lowered = kernel.lower(causal(2, 8))
    alone = [kernel(q[:, [head]], k[:, [head]], v[:, [head]], lowered) for head in range(5)]
    torch.testing.assert_close(kernel(q, k, v, lowered), torch.cat(alone, dim=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [2 * BLOCK, 4 * BLOCK])
def test_plain_never_holds_all_scores(length: int) -> None:
    assert operations(KERNELS["plain"](0.5), 2, length).largest == 2 * BLOCK * length
    assert operations(KERNELS["reference"](0.5), 2, length).largest == 2 * length * length


@kernels
def test_gradients_are_those_of_the_function(name: str) -> None:
    layout = Layout.padded((4, 2), 4)
    kernel = KERNELS[name](0.6)
    lowered = kernel.lower(Mask(Causal(), layout, layout))
    q = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 1, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *qkv: kernel(*qkv, lowered), (q, k, v))
