"""Norms: row by row, the stated bounds, statistics in fp32, gains and shifts shared by all rows."""

from math import sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config import LayerNormConfig, RMSNormConfig
from heddle.nn import LayerNorm, RMSNorm
from heddle.nn.norm import make_norm

NORMS = [LayerNormConfig(), LayerNormConfig(bias=False), RMSNormConfig()]
norms = pytest.mark.parametrize("config", NORMS, ids=["layer", "layer without shift", "rms"])


def plain(norm: nn.Module) -> nn.Module:
    """Gain 1, shift 0."""
    for name, parameter in norm.named_parameters():
        nn.init.constant_(parameter, 1.0 if name == "weight" else 0.0)
    return norm


def filled(norm: nn.Module) -> nn.Module:
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


@norms
@pytest.mark.lecture("L1-10", "L0-94")
def test_each_row_by_itself(config: LayerNormConfig | RMSNormConfig) -> None:
    norm = filled(make_norm(config, 6).double())
    x = torch.randn(5, 6, dtype=torch.float64)
    for row, whole in zip(x, norm(x), strict=True):
        assert torch.equal(norm(row), whole)


@norms
@pytest.mark.lecture("L1-13")
def test_any_number_of_leading_axes(config: LayerNormConfig | RMSNormConfig) -> None:
    norm = filled(make_norm(config, 6))
    x = torch.randn(2, 3, 4, 6)
    expected = norm(x)
    assert torch.equal(norm(x[0]), expected[0])
    assert torch.equal(norm(x[0, 0]), expected[0, 0])
    assert torch.equal(norm(x[0, 0, 0]), expected[0, 0, 0])


@pytest.mark.lecture("L0-49", "L3-31")
def test_gain_and_shift_are_shared_by_the_rows() -> None:
    norm = filled(LayerNorm(768).double())
    assert sum(parameter.numel() for parameter in norm.parameters()) == 2 * 768 == 1536
    assert all(parameter.requires_grad for parameter in norm.parameters())
    x, weights = torch.randn(2, 7, 768, dtype=torch.float64)
    (norm(x) * weights).sum().backward()
    with torch.no_grad():
        normed = plain(LayerNorm(768).double())(x)
    torch.testing.assert_close(norm.weight.grad, (normed * weights).sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(norm.bias.grad, weights.sum(0), rtol=0, atol=1e-12)


@pytest.mark.lecture("L0-52")
@pytest.mark.parametrize(("dim", "bound"), [(4, 1.7320508), (64, 7.9372539), (768, 27.6947649)])
def test_no_value_is_extreme(dim: int, bound: float) -> None:
    exact = plain(LayerNorm(dim, eps=0.0).double())
    one_hot = torch.zeros(dim, dtype=torch.float64)
    one_hot[1] = 3.0
    assert exact(one_hot).max().item() == pytest.approx(sqrt(dim - 1), rel=1e-12)
    assert exact(one_hot).max().item() == pytest.approx(bound, abs=1e-7)
    wild = torch.randn(1000, dim, dtype=torch.float64) ** 5
    assert exact(wild).abs().max() <= sqrt(dim - 1) * (1 + 1e-12)


@pytest.mark.lecture("L0-52")
def test_eps_tames_a_one_hot_row() -> None:
    row = torch.zeros(768, dtype=torch.float64)
    row[0] = 1.0
    assert plain(LayerNorm(768).double())(row).max().item() == pytest.approx(27.5888885, abs=5e-8)


@pytest.mark.lecture("L2-27", "L3-30")
def test_a_row_gets_mean_zero_and_variance_one() -> None:
    norm = plain(LayerNorm(4).double())
    assert norm.eps == 1e-5
    result = norm(torch.tensor([1.0, 0.5, -0.5, 2.0], dtype=torch.float64))
    assert abs(result.mean()) < 1e-12
    assert result.var(correction=0).item() == pytest.approx(0.999987692459, abs=1e-12)
    assert result.std(correction=0).item() == pytest.approx(sqrt(0.999987692459), abs=1e-12)


@pytest.mark.lecture("L2-29")
def test_gain_and_shift_are_a_new_deviation_and_mean() -> None:
    norm = LayerNorm(16, eps=0.0).double()
    nn.init.constant_(norm.weight, 2.0)
    nn.init.constant_(norm.bias, 3.0)
    result = norm(torch.randn(9, 16, dtype=torch.float64))
    torch.testing.assert_close(result.mean(-1), torch.full((9,), 3.0, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        result.std(-1, correction=0), torch.full((9,), 2.0, dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.lecture("L2-32")
def test_rms_norm_only_scales() -> None:
    norm = RMSNorm(10).double()
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    assert norm.weight.numel() == 10
    assert sum(parameter.numel() for parameter in LayerNorm(10).parameters()) == 20
    x = torch.rand(3, 10, dtype=torch.float64) + 5
    assert (plain(norm)(x).mean(-1) > 0.9).all(), "the mean stays"


@norms
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_statistics_are_fp32_whatever_goes_in(config: LayerNormConfig | RMSNormConfig, dtype: torch.dtype) -> None:
    """Squares of 1000 overflow fp16, and a sum of 4096 of them loses all of bf16's digits."""
    norm = plain(make_norm(config, 4096))
    x = (1000 * torch.randn(2, 4096, generator=torch.Generator().manual_seed(0))).to(dtype)
    result = norm(x)
    assert result.dtype == dtype
    exact = plain(make_norm(config, 4096).double())(x.double())
    torch.testing.assert_close(result.double(), exact, rtol=2**-8, atol=2**-8)


def test_a_config_says_which_norm() -> None:
    assert isinstance(make_norm(RMSNormConfig(eps=1e-3), 4), RMSNorm)
    layer = make_norm(LayerNormConfig(eps=1e-3, bias=False), 4)
    assert isinstance(layer, LayerNorm)
    assert (layer.eps, layer.bias) == (1e-3, None)
    assert make_norm(RMSNormConfig(eps=1e-3), 4).eps == 1e-3


@norms
def test_gradients_are_those_of_the_formula(config: LayerNormConfig | RMSNormConfig) -> None:
    norm = filled(make_norm(config, 5).double())

    def run(x: Tensor) -> Tensor:
        return norm(x)

    assert torch.autograd.gradcheck(run, torch.randn(2, 5, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("shape", [(6,), (4, 6), (3, 2, 6), (2, 3, 2, 6), (0, 6)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_of_the_rms_norm_is_autograds(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of one, or few, rows: against torch's own norm in double precision."""
    monkeypatch.setattr("heddle.nn.norm.IN_CACHE", 12)
    norm = filled(RMSNorm(6, 1e-3)).to(torch.float64 if dtype == torch.float64 else torch.float32)
    x, weights = torch.randn(2, *shape).to(dtype)
    x.requires_grad_()
    (norm(x) * weights).sum().backward()
    exact, gain = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    (F.rms_norm(exact, (6,), gain, 1e-3) * weights.double()).sum().backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(norm.weight.grad.double(), gain.grad, rtol=tolerance, atol=tolerance)


def test_the_rms_norm_keeps_no_copy_of_its_input() -> None:
    norm, saved = filled(RMSNorm(8)), list[int]()
    x = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        norm(x)
    assert x.data_ptr() in saved
    assert len(saved) == 3  # the input, the gain, a factor for each row


def test_the_rms_norm_is_the_same_with_and_without_gradients() -> None:
    norm, x = filled(RMSNorm(6)), torch.randn(3, 4, 6)
    learned = norm(x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(norm(x), learned)


def test_a_compiler_may_take_the_forward_pass_of_the_rms_norm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = filled(RMSNorm(96)), torch.randn(96, 64, 96, requires_grad=True)
    plain = torch.autograd.grad(norm(x).square().sum(), [x, norm.weight])
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        out = norm(x)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), [x, norm.weight]), plain)


def test_rows_are_split_for_the_cache_of_a_cpu_alone() -> None:
    """On any other device each part would be a launch of its own."""
    numbers = (64, 64, 96)
    for device, parts in (("cpu", 4), ("meta", 1)):
        x, norm = torch.empty(numbers, device=device, requires_grad=True), RMSNorm(96).to(device)
        out = norm(x)
        assert len(out.grad_fn.saved_tensors) == 2 + parts


class OnCuda(Tensor):
    """A tensor of the CPU that says it is on CUDA."""

    is_cuda = True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_has_a_kernel_for_the_rms_norm(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = filled(RMSNorm(6, 1e-3)), torch.randn(4, 6).to(dtype)
    dtypes, kernel = list[torch.dtype](), F.rms_norm

    def noting(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
        dtypes.append(weight.dtype)  # the kernel needs one dtype for both
        return kernel(x.as_subclass(Tensor), shape, weight, eps)

    monkeypatch.setattr(F, "rms_norm", noting)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]  # two roundings instead of one
    torch.testing.assert_close(norm(x.as_subclass(OnCuda)), norm(x), rtol=tolerance, atol=tolerance)
    assert dtypes == [dtype]
