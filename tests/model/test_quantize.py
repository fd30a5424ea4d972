"""Rounded weights: how far they are from the trained ones, and that everything computes with them."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from heddle.config import ClassifierHeadConfig, ConvolutionConfig, RecurrentConfig, SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import generate
from heddle.model import Transformer, build
from heddle.model.linear import Choosing, use_few_rows, use_products
from heddle.model.quantize import Int4, Int8, QuantizedHead, QuantizedLinear, Rounded, quantize, weight_bytes
from heddle.native.products import GROUP, rounded_inputs
from tests.models import VOCABULARY, config_of

BLOCKS: dict[str, dict[str, Any]] = {
    "biases": {"kv_heads": 2},
    "no biases": {"kv_heads": 2, "bias": False, "ffn": "gated", "ffn_bias": False},
    "experts": {"ffn": "moe", "shared": 1},
    "recurrent": {"first": RecurrentConfig(cell="lstm"), "positions": "none"},
}


def made(block: str = "biases", family: str = "decoder", **more: Any) -> Transformer:
    config = config_of(family=family, dim=64, **BLOCKS[block], **more)
    return build(config.override({"initial": {"std": 0.08, "scale_residual": False}}), seed=3).eval()


@torch.no_grad()
def scores(model: Transformer, rows: int = 2) -> Tensor:
    tokens = torch.arange(rows * 5).view(rows, 5) % VOCABULARY
    source = None if model.encoder is None else tokens.flip(1)
    return model.logits(model(tokens, source=source).hidden)[..., :VOCABULARY]


def matrix(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.1


@pytest.fixture(params=["library", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who multiplies: this processor's own products or, without a compiler, torch."""
    if request.param == "torch":
        monkeypatch.setattr("heddle.model.quantize.library", lambda: None)
    return str(request.param)


def relative(near: Tensor, exact: Tensor) -> float:
    return float((near - exact).norm() / exact.norm())


@given(outputs=st.integers(1, 70), inputs=st.integers(1, 100), rows=st.integers(1, 40), seed=st.integers(0, 99))
def test_int8_is_within_half_a_step(outputs: int, inputs: int, rows: int, seed: int) -> None:
    weight, x = matrix(outputs, inputs, seed), matrix(rows, inputs, seed + 100) * 30
    rounded, near = Int8(weight), []
    # The scale of a weight is rounded to bf16, upwards or downwards, by at most 1/256.
    for exact, values, most in (
        (weight, rounded.unpacked(torch.float32), 0.5 + 127 / 256 + 0.01),
        (x, rounded_inputs(x), 0.5001),
    ):
        width = -(-inputs // GROUP) * GROUP
        groups = np.pad(exact.numpy(), ((0, 0), (0, width - inputs))).reshape(len(exact), -1, GROUP)
        steps = np.repeat(np.abs(groups).max(-1) / 127, GROUP, axis=1)[:, :inputs]
        assert (np.abs(values.numpy() - exact.numpy()) <= steps * most).all()
        near.append(values.double().numpy())
    expected = near[1] @ near[0].T
    np.testing.assert_allclose(rounded.product(x), expected, atol=1e-5 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("kind", [Int8, Int4])
def test_a_row_is_rounded_alike_alone_and_among_others(kind: type[Rounded], by: str) -> None:
    rounded, rows = kind(matrix(50, 100)), matrix(40, 100, seed=1)
    alone, among = torch.cat([rounded.product(row[None]) for row in rows]), rounded.product(rows)
    if by == "library":
        assert torch.equal(alone, among)
    torch.testing.assert_close(alone, among)


@pytest.mark.parametrize("kind", [Int8, Int4])
def test_without_a_compiler_torch_multiplies_the_same(kind: type[Rounded], monkeypatch: pytest.MonkeyPatch) -> None:
    rounded, x = kind(matrix(50, 90)), matrix(3, 90, seed=1)
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        by_library = rounded.product(x.to(dtype))
        with monkeypatch.context() as patch:
            patch.setattr("heddle.model.quantize.library", lambda: None)
            without = kind(matrix(50, 90))
        assert not without.native
        torch.testing.assert_close(without.product(x.to(dtype)), by_library, rtol=close, atol=close)


@pytest.mark.parametrize("kind", [Int8, Int4])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 64), (50, 96), (7, 100), (130, 20)])
def test_the_stored_integers_are_those_of_the_matrix(kind: type[Rounded], outputs: int, inputs: int, by: str) -> None:
    """Products with unit vectors are the columns."""
    rounded = kind(matrix(outputs, inputs))
    columns = rounded.product(torch.eye(inputs))
    torch.testing.assert_close(columns.T, rounded.unpacked(torch.float32), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inputs", [32, 64, 96, 128])
def test_int4_has_sixteen_values_in_each_group(inputs: int) -> None:
    weight = matrix(40, inputs)
    rounded = Int4(weight)
    integers = rounded.integers()
    assert integers.min() == -8
    assert integers.max() == 7
    assert rounded.values.numel() == 40 * -(-inputs // 64) * GROUP  # two numbers in a byte, in pairs of groups
    # Better than the largest number at the end of the range, which is how a group is usually rounded.
    groups = weight.unflatten(1, (-1, GROUP))
    scales = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    usual = ((groups / scales).round().clamp(-8, 7) * scales).flatten(1)
    assert relative(rounded.unpacked(torch.float32), weight) < 0.96 * relative(usual, weight)


def test_int4_is_exact_for_what_four_bits_hold() -> None:
    weight = torch.arange(GROUP).remainder(16).float().sub(8).mul(0.25).expand(16, GROUP)
    for sign in (1, -1):  # the number that is the largest has either sign
        assert torch.equal(Int4(sign * weight).unpacked(torch.float32), sign * weight)


@pytest.mark.parametrize("kind", [Int8, Int4])
def test_a_row_of_zeros(kind: type[Rounded]) -> None:
    weight = matrix(16, 32)
    weight[3] = 0
    near = kind(weight).product(torch.eye(32)).T
    assert near[3].abs().max() < 1e-20
    assert near.isfinite().all()


@pytest.mark.parametrize("kind", [Int8, Int4])
def test_a_matrix_is_copied(kind: type[Rounded]) -> None:
    rounded, x = kind(matrix(50, 30)), matrix(4, 30, seed=1)
    again = copy.deepcopy(rounded)
    assert again.values is not rounded.values
    assert torch.equal(again.product(x), rounded.product(x))


def unrounded(model: Transformer) -> Transformer:
    """An ordinary model with the numbers that a rounded one multiplies by."""
    plain = copy.deepcopy(model)
    for parent in list(plain.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear):
                weight = child.weights.unpacked(torch.float32)
                linear = nn.Linear(weight.shape[1], weight.shape[0], bias=child.bias is not None)
                linear.weight, linear.bias = nn.Parameter(weight), child.bias
                setattr(parent, name, linear)
    return plain


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("head", [{}, {"tied": False, "head_bias": True}, {"head_transform": True, "head_cap": 5.0}])
@pytest.mark.parametrize("rows", [2, 16])
def test_everything_computes_with_the_rounded_weights(
    kind: str, block: str, head: dict[str, Any], rows: int, by: str
) -> None:
    model = made(block, **head)
    trained = scores(model, rows)
    assert quantize(model, kind) is model
    actual, expected = scores(model, rows), scores(unrounded(model), rows)
    scale = trained.std()
    assert (actual - expected).std() / scale < 0.03  # inputs are rounded, too
    assert 0 < (expected - trained).std() / scale < (0.05 if kind == "int8" else 0.3)


def test_an_encoder_and_its_decoder(by: str) -> None:
    model = made(family="both")
    trained = scores(model)
    quantize(model, "int8")
    assert sum(isinstance(module, QuantizedLinear) for module in model.modules()) == 2 * 6 + 2 * 10
    assert isinstance(model.head, QuantizedHead)
    assert (scores(model) - trained).std() / trained.std() < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_a_loss_has_the_same_table(tied: bool, by: str) -> None:
    """A loss asks the head how features become scores, and computes them itself."""
    model = quantize(made(tied=tied), "int8")
    hidden = torch.randn(3, 64)
    head: Any = model.head
    table = model.head.scoring(model.embedding.weight)
    actual = head.features(hidden) @ table.table.T
    torch.testing.assert_close(table.finish(actual), model.logits(hidden), atol=5e-5, rtol=1e-5)
    assert not torch.equal(table.table, model.embedding.weight)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_classifier_keeps_its_own_map(kind: str) -> None:
    """Its loss reads the weight of its linear map, whatever the number of classes."""
    head = ClassifierHeadConfig(classes=20, dense=True)
    model = build(config_of(family="encoder", dim=64).override({"head": head.to_dict()})).eval()
    hidden, scale = torch.randn(2, 5, 64), model.head.scoring(model.embedding.weight)
    expected = model.head(hidden, None, model.embedding.weight)
    quantize(model, kind)
    assert sum(isinstance(module, QuantizedLinear) for module in model.modules()) == 2 * 6
    assert torch.equal(model.head.scoring(model.embedding.weight).table, scale.table)
    assert torch.equal(model.head(hidden, None, model.embedding.weight), expected)


def test_generation_reads_fewer_bytes() -> None:
    model = made()
    before = weight_bytes(model)
    quantize(model, "int4")
    assert weight_bytes(model) < before / 2
    events = list(generate(model, [[1, 2], [3]], SamplingConfig(max_tokens=5, temperature=0)))
    assert len(events) == 10


def test_a_model_that_has_generated_or_trained_is_rounded_as_if_it_had_not(by: str) -> None:
    """Both leave its layers in the class that chooses a library: they are the same layers."""
    expected = scores(quantize(made(), "int8"))
    model = use_few_rows(made())
    use_products(model, ())
    quantize(model, "int8")
    assert not any(isinstance(module, Choosing) for module in model.modules())
    assert torch.equal(scores(model), expected)


def test_refusals() -> None:
    with pytest.raises(HeddleError, match=r"weights = 'int3' is not one of trained, int8, int4\. Did you mean"):
        quantize(made(), "int3")
    with pytest.raises(HeddleError, match="needs a model on a CPU, not on meta: set device = cpu"):
        quantize(build(made().config, device="meta"), "int8")
    only = config_of(family="decoder", dim=64, first=ConvolutionConfig(), ffn="none", depth=1)
    with pytest.raises(HeddleError, match="has no linear layers to quantize"):
        quantize(build(only), "int8")


def test_as_trained_changes_nothing() -> None:
    model = made()
    trained = scores(model)
    assert torch.equal(scores(quantize(model, "trained")), trained)
