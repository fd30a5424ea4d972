"""Muon beside torch's own, its iterations beside singular values, and stacks beside single matrices."""

from importlib import import_module

import pytest
import torch
from torch import Tensor

from heddle.config import preset
from heddle.config.train import TrainConfig
from heddle.model import build
from heddle.model.products import has_onednn
from heddle.train import Optimizer
from heddle.train.muon import FIVE, THREE, Iteration, Muon, orthogonalise

SHAPES = ((8, 8), (24, 8), (8, 24), (8, 8), (40, 12))


def parameters(seed: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]


def give_gradients(parameters: list[Tensor], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def test_the_plain_iteration_is_torchs() -> None:
    """Five equal steps in bf16, the Frobenius norm: torch's optimizer, matrix by matrix, over several steps."""
    ours, reference = parameters(0), parameters(0)
    optimizer = Muon(ours, 0.03, weight_decay=0.4, dtype=torch.bfloat16, iteration=FIVE, tight=False)
    witness = torch.optim.Muon(reference, lr=0.03, weight_decay=0.4)
    for step in range(4):
        for each in (ours, reference):
            give_gradients(each, step)
        optimizer.step()
        witness.step()
    start = parameters(0)
    for actual, other, first in zip(ours, reference, start, strict=True):
        moved = (other - first).abs().max()
        assert moved > 0.05
        assert (actual - other).abs().max() < 0.02 * moved  # bf16 products, summed in another order
        assert torch.equal(optimizer.state[actual]["momentum_buffer"], witness.state[other]["momentum_buffer"])


def test_in_fp32_it_is_the_same_iteration_exactly() -> None:
    """x <- a x + b (x xT) x + c (x xT)^2 x in float64 on one matrix, by hand."""
    (matrix,) = parameters(1, ((6, 10),))
    x = (matrix.detach() / matrix.detach().norm()).double()
    for a, b, c in FIVE:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    result = orthogonalise(matrix.detach()[None], FIVE, tight=False)[0]
    torch.testing.assert_close(result.double(), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("iteration", "tight"), [(FIVE, False), (THREE, True)], ids=["five", "three"])
def test_singular_values_come_near_one(iteration: Iteration, tight: bool, dtype: torch.dtype) -> None:
    """Of every matrix of a stack, from 2 % of the largest up, whatever their scale; the singular vectors stay."""
    draw = torch.Generator().manual_seed(2)
    u = torch.linalg.qr(torch.randn(3, 32, 32, generator=draw, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(3, 80, 32, generator=draw, dtype=torch.float64)).Q
    values = torch.logspace(0, -1.7, 32, dtype=torch.float64)
    scale = torch.tensor([1.0, 1e-6, 1e6], dtype=torch.float64)[:, None, None]
    matrices = (scale * (u * values) @ v.mT).to(dtype)
    made = orthogonalise(matrices, iteration, tight).double()
    inside = u.mT @ made @ v
    middle = torch.diagonal(inside, dim1=1, dim2=2)
    slack = 0.0 if dtype == torch.float32 else 0.1
    assert 0.65 - slack < middle.min() <= middle.max() < 1.3 + slack
    off = inside - torch.diag_embed(middle)
    assert off.abs().max() < (1e-4 if dtype == torch.float32 else 0.1)


def test_even_spectra_profit_from_the_tight_bound() -> None:
    """All singular values equal: the Frobenius norm starts the iteration from 1/√rank, the tight bound from rank^-1/8."""
    matrix = torch.linalg.qr(torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(3))).Q
    one_step = THREE[:1]
    loose = torch.linalg.svdvals(orthogonalise(matrix, one_step, tight=False)).mean()
    tight = torch.linalg.svdvals(orthogonalise(matrix, one_step, tight=True)).mean()
    a, b, c = one_step[0]
    for start, result in ((64**-0.5, loose), (64**-0.125 / 1.02**0.5, tight)):
        torch.testing.assert_close(result.item(), a * start + b * start**3 + c * start**5, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_stay_zeros(dtype: torch.dtype) -> None:
    """An expert that no token chose has no gradient and is not moved."""
    stack = torch.stack([torch.zeros(4, 6), torch.ones(4, 6)]).to(dtype)
    made = orthogonalise(stack, THREE, tight=True)
    assert torch.equal(made[0], torch.zeros(4, 6, dtype=dtype))
    assert made.isfinite().all()
    assert made[1].abs().max() > 0.1


def test_a_stack_is_updated_as_its_matrices_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """[E m n] beside E parameters of [m n], with batches so small that a stack is cut."""
    (stack,) = parameters(4, ((5, 6, 9),))
    single = [matrix.detach().clone().requires_grad_() for matrix in stack]
    wide = parameters(5, ((9, 6), (6, 9)))
    monkeypatch.setattr("heddle.train.muon.STACK", 2 * 6 * 9)
    together = Muon([stack, *wide], 0.1, weight_decay=0.1)
    monkeypatch.setattr("heddle.train.muon.STACK", 1 << 20)
    apart = Muon(single, 0.1, weight_decay=0.1)
    for step in range(3):
        give_gradients([stack, *wide], step)
        assert stack.grad is not None
        for matrix, gradient in zip(single, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        monkeypatch.setattr("heddle.train.muon.STACK", 2 * 6 * 9)
        together.step()
        monkeypatch.setattr("heddle.train.muon.STACK", 1 << 20)
        apart.step()
    torch.testing.assert_close(stack.detach(), torch.stack([matrix.detach() for matrix in single]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_multiplies_in_the_working_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in fp32 never waits for bf16 products, which a CPU without units for them computes hundreds of times slower."""
    seen = set()
    true_products = torch.bmm

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.add(a.dtype)
        return true_products(a, b)

    model = build(preset("laptop-moe"))
    optimizer = Optimizer(model, TrainConfig(optimizer="muon"), 1e-3, precision)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.collect()
    before = {name: master.detach().clone() for name, master in optimizer.masters.items()}
    monkeypatch.setattr(torch, "bmm", watched)
    optimizer.step(1.0, 1.0)
    assert seen == {torch.float32 if precision == "fp32" else torch.bfloat16}
    for name, master in optimizer.masters.items():
        if ".experts." in name:  # each expert is a matrix that Muon updates
            assert ((master - before[name]).flatten(1).abs().amax(1) > 0).all(), name
            assert isinstance(optimizer.updaters[name], Muon), name


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("iteration", "tight"), [(FIVE, False), (THREE, True)], ids=["five", "three"])
def test_onednn_makes_the_same_update(iteration: Iteration, tight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its products are computed there, in fp32; bf16 stays torch's."""
    products = import_module("heddle.model.products")
    matrices = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(4))
    expected = orthogonalise(matrices, iteration, tight)
    monkeypatch.setattr(torch, "bmm", lambda *args: pytest.fail("torch was asked"))
    monkeypatch.setattr(torch, "baddbmm", lambda *args, **how: pytest.fail("torch was asked"))
    torch.testing.assert_close(orthogonalise(matrices, iteration, tight, ("update",)), expected, rtol=0, atol=1e-4)
    monkeypatch.undo()
    monkeypatch.setattr(products, "onednn", lambda *args: pytest.fail("oneDNN was asked"))
    orthogonalise(matrices.bfloat16(), iteration, tight, ("update",))
    orthogonalise(matrices, iteration, tight, ("forward", "inputs", "weights"))


def test_the_optimizer_hands_its_choice_on() -> None:
    optimizer = Optimizer(build(preset("laptop-moe")), TrainConfig(optimizer="muon"), 1e-3, "fp32", ("update",))
    assert [each.by_onednn for each in optimizer.optimizers if isinstance(each, Muon)] == [("update",)]
