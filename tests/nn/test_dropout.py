"""Dropout: its rate, its scale, and where it does not act."""

import pytest
import torch
from torch import nn

from heddle.nn import KERNELS, Causal, Dropout, Layout, Mask, drop
from heddle.nn.kernels import Kernel


@pytest.mark.lecture("L0-57")
def test_the_rate_is_the_share_of_zeros() -> None:
    torch.manual_seed(0)
    ones = torch.ones(1_000_000)
    dropped = Dropout(0.1).train()(ones)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.1, abs=0.001)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.002)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1.0).div(0.9).item()}
    assert Dropout(0.1).eval()(ones) is ones


@pytest.mark.lecture("L0-62")
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_is_torchs(rate: float) -> None:
    """What is kept is what torch makes of it, as many values are kept, and gradients go the same way."""
    torch.manual_seed(3)
    x = torch.rand(400, 500).add(0.1).requires_grad_()
    out = Dropout(rate)(x)
    out.sum().backward()
    for each, source in ((out.detach(), x.detach()), (x.grad, torch.ones_like(x))):
        assert each is not None
        torch.testing.assert_close(each[out != 0], (source / (1 - rate))[out != 0])
        assert not each[out == 0].any()
    share = nn.Dropout(rate)(torch.ones(400, 500)).count_nonzero() / x.numel()
    assert (out != 0).double().mean().item() == pytest.approx(
        share.item(), abs=6 * (rate * (1 - rate) / x.numel()) ** 0.5
    )


def test_neighbours_are_dropped_independently() -> None:
    """Also those whose decisions come from the same random number."""
    torch.manual_seed(0)
    rate, count = 0.3, 1 << 20
    drops = (Dropout(rate)(torch.ones(count)) == 0).double()
    for apart in (1, 2, 3, 4, 8, 64):
        together = (drops[apart:] * drops[:-apart]).mean().item()
        assert together == pytest.approx(rate**2, abs=6 * (rate**2 / count) ** 0.5), apart
    by_place = drops.unflatten(0, (-1, 4)).mean(0)
    torch.testing.assert_close(
        by_place, torch.full((4,), rate, dtype=torch.float64), rtol=0, atol=6 * (0.21 * 4 / count) ** 0.5
    )


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, float("nan")])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="dropout rate must be in"):
        Dropout(rate)


def test_rate_zero_changes_nothing() -> None:
    x = torch.randn(3)
    assert Dropout(0.0).train()(x) is x


def test_gradients_go_where_values_went() -> None:
    x = torch.ones(5, requires_grad=True)
    keep = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    drop(x, keep, 0.5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 2.0, 2.0, 0.0]


def run(kernel: Kernel) -> torch.Tensor:
    """Attention of the values' rows of the identity: what comes out are the weights."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 8, 4, generator=generator)
    v = torch.eye(8).expand(1, 2, 8, 8)
    layout = Layout.whole(1, 8)
    return kernel(q, k, v, kernel.lower(Mask(Causal(), layout, layout)))


@pytest.mark.lecture("L0-64")
# The two that never hold the weights refuse to drop them: see test_kernels.py.
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("blockwise", "flex")])
def test_every_kernel_drops_attention_weights(name: str) -> None:
    torch.manual_seed(0)
    kernel = KERNELS[name](0.5, 0.5)
    whole = run(kernel.eval())
    assert torch.equal(run(KERNELS[name](0.5).train()), run(KERNELS[name](0.5).eval())), "rate 0 is no dropout"
    assert torch.equal(run(kernel), whole), "evaluation drops nothing"
    kernel.train()
    drawn = torch.stack([run(kernel) for _ in range(300)])
    assert ((drawn == 0) | ((drawn - 2 * whole).abs() < 1e-6)).all(), "a weight is dropped or doubled"
    seen = whole > 0
    share = (drawn[:, seen] == 0).double().mean().item()
    assert share == pytest.approx(0.5, abs=0.02)
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.lecture("L0-65")
def test_the_mask_is_of_weights_not_of_channels() -> None:
    kernel = KERNELS["reference"](0.5, 0.25).train()
    shapes = []
    kernel.dropout.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    q = torch.randn(1, 2, 3, 2)  # T = 3, d = 4 in h = 2 heads
    layout = Layout.whole(1, 3)
    kernel(q, q, q, kernel.lower(Mask(Causal(), layout, layout)))
    assert shapes == [(1, 2, 3, 3)]
