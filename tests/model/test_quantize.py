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
from heddle.model import Transformer, build, packing
from heddle.model.quantize import (
    GROUP,
    ROWS,
    Int4,
    Int8,
    IntegerInt8,
    QuantizedHead,
    QuantizedLinear,
    multiplies_integers,
    quantize,
    weight_bytes,
)
from tests.models import VOCABULARY, config_of

INTEGERS = pytest.mark.skipif(not multiplies_integers(), reason="this processor does not multiply 8-bit integers")
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


@pytest.fixture(params=[False, pytest.param(True, marks=INTEGERS)], ids=["bf16 inputs", "8-bit inputs"])
def integers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to multiply, where the processor has both."""
    monkeypatch.setattr("heddle.model.quantize.multiplies_integers", lambda: request.param)
    return bool(request.param)


def values(weights: Int8 | IntegerInt8 | Int4, inputs: int) -> np.ndarray:
    """The matrix that the kernel multiplies by: its products with unit vectors are exact, or off by 2⁻²³ in 8 bits."""
    eye = torch.eye(inputs, dtype=torch.bfloat16)
    return torch.cat([weights.product(row[None]).float() for row in eye]).T.double().numpy()


@given(outputs=st.integers(1, 70), inputs=st.integers(1, 100), rows=st.integers(1, 2 * ROWS), seed=st.integers(0, 99))
def test_int8_is_within_half_a_step(outputs: int, inputs: int, rows: int, seed: int) -> None:
    weight = matrix(outputs, inputs, seed)
    rounded = Int8(weight)
    near = rounded.unpacked(torch.float64).numpy()
    steps = np.abs(weight.double().numpy()).max(1, keepdims=True) / 127
    # The scale is rounded to bf16, upwards or downwards, by at most 1/256.
    assert (np.abs(near - weight.double().numpy()) <= steps * (0.5 + 127 / 256 + 0.01)).all()
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    expected = x.double().numpy() @ near.T
    np.testing.assert_allclose(rounded.product(x).double(), expected, atol=0.02 * np.abs(expected).max() + 1e-6)


@INTEGERS
@given(outputs=st.integers(1, 70), inputs=st.integers(1, 100), rows=st.integers(1, 40), seed=st.integers(0, 99))
def test_integers_are_within_half_a_step(outputs: int, inputs: int, rows: int, seed: int) -> None:
    weight, x = matrix(outputs, inputs, seed), matrix(rows, inputs, seed + 100) * 30
    rounded, near = IntegerInt8(weight), []
    for exact in (weight.numpy(), x.numpy()):
        steps = np.abs(exact).max(1, keepdims=True) / np.float32(127)
        near.append(np.rint(exact / steps) * steps)
        assert (np.abs(near[-1] - exact) <= steps * 0.5001).all()
    np.testing.assert_allclose(rounded.unpacked(torch.float64), near[0], atol=1e-6)
    expected = near[1].astype(np.float64) @ near[0].T
    np.testing.assert_allclose(rounded.product(x), expected, atol=1e-5 * (1 + np.abs(expected).max()))


@INTEGERS
def test_the_largest_integers_are_added_exactly() -> None:
    """Two products of 127 and 255 exceed 16 bits, in which some processors add them."""
    weight, x = torch.full((64, 512), 127.0), torch.full((3, 512), 127.0)
    assert (IntegerInt8(weight).product(x) == 127 * 127 * 512).all()


@INTEGERS
def test_a_row_has_the_same_integers_alone_and_among_others() -> None:
    model = made()
    quantize(model, "int8")
    layer = next(module for module in model.modules() if isinstance(module, QuantizedLinear))
    rows = torch.randn(40, 64)
    alone = torch.cat([layer(row[None]) for row in rows])
    assert torch.equal(alone, layer(rows))


@given(outputs=st.integers(1, 70), inputs=st.integers(1, 100), seed=st.integers(0, 99))
def test_a_row_is_rounded_alike_alone_and_among_others(outputs: int, inputs: int, seed: int) -> None:
    """Few rows are multiplied by a kernel, many by ordinary numbers: up to the order of a sum, whose last bit bf16 rarely keeps."""
    weights, rows = Int8(matrix(outputs, inputs, seed)), matrix(2 * ROWS, inputs, seed + 100) * 30
    alone, among = torch.cat([weights.product(row[None]) for row in rows]), weights.product(rows)
    assert alone.dtype == among.dtype == torch.float32
    assert (alone != among).sum() < 3 + among.numel() / 50
    torch.testing.assert_close(alone, among, rtol=2**-7, atol=1e-5 * float(among.abs().max()))


@INTEGERS
def test_integers_are_copied() -> None:
    weights, x = IntegerInt8(matrix(50, 30)), matrix(4, 30, seed=1)
    again = copy.deepcopy(weights)
    assert again.values is not weights.values
    assert torch.equal(again.product(x), weights.product(x))


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 64), (50, 96), (7, 128), (130, 32)])
def test_int4_has_sixteen_values_in_each_group(outputs: int, inputs: int) -> None:
    weight = matrix(outputs, inputs)
    near = values(Int4(weight), inputs)
    groups, exact = (each.reshape(outputs, -1, GROUP) for each in (near, weight.double().numpy()))
    assert max(len(np.unique(group)) for row in groups for group in row) == 16
    plain = (exact.max(-1, keepdims=True) - exact.min(-1, keepdims=True)) / 15
    error = np.sqrt(((groups - exact) ** 2).mean())
    assert error < np.sqrt(
        (plain**2 / 12).mean()
    )  # that of rounding to sixteen even steps from the least to the largest


def test_int4_is_exact_for_what_four_bits_hold() -> None:
    weight = torch.arange(GROUP).remainder(16).float().sub(8).mul(0.25).expand(16, GROUP)
    assert np.array_equal(values(Int4(weight), GROUP), weight.double().numpy())


@pytest.mark.parametrize("kind", [Int8, Int4, pytest.param(IntegerInt8, marks=INTEGERS)])
def test_a_row_of_zeros(kind: Any) -> None:
    weight = matrix(16, 32)
    weight[3] = 0
    near = values(kind(weight), 32)
    assert np.abs(near[3]).max() < 1e-20
    assert np.isfinite(near).all()


def unrounded(model: Transformer) -> Transformer:
    """An ordinary model with the numbers that a rounded one multiplies by."""
    plain = copy.deepcopy(model)
    for parent in list(plain.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear):
                weights = child.weights
                if isinstance(weights, Int4):
                    weight = torch.from_numpy(values(weights, len(weights.scales) * GROUP)).float()
                else:
                    weight = weights.unpacked(torch.float32)
                linear = nn.Linear(weight.shape[1], weight.shape[0], bias=child.bias is not None)
                linear.weight, linear.bias = nn.Parameter(weight), child.bias
                setattr(parent, name, linear)
    return plain


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("head", [{}, {"tied": False, "head_bias": True}, {"head_transform": True, "head_cap": 5.0}])
@pytest.mark.parametrize("rows", [2, ROWS])
def test_everything_computes_with_the_rounded_weights(
    kind: str, block: str, head: dict[str, Any], rows: int, integers: bool
) -> None:
    model = made(block, **head)
    trained = scores(model, rows)
    assert quantize(model, kind) is model
    actual, expected = scores(model, rows), scores(unrounded(model), rows)
    scale = trained.std()
    assert (actual - expected).std() / scale < (0.03 if integers else 0.015)  # inputs are rounded, too
    assert 0 < (expected - trained).std() / scale < (0.05 if kind == "int8" else 0.3)


def test_an_encoder_and_its_decoder(integers: bool) -> None:
    model = made(family="both")
    trained = scores(model)
    quantize(model, "int8")
    assert sum(isinstance(module, QuantizedLinear) for module in model.modules()) == 2 * 6 + 2 * 10
    assert isinstance(model.head, QuantizedHead)
    assert (scores(model) - trained).std() / trained.std() < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_a_loss_has_the_same_table(tied: bool, integers: bool) -> None:
    """A loss asks the head how features become scores, and computes them itself."""
    model = quantize(made(tied=tied), "int8")
    hidden = torch.randn(3, 64)
    head: Any = model.head
    table = model.head.scoring(model.embedding.weight)
    actual, close = head.features(hidden) @ table.table.T, 1e-5 if integers else 0.02
    torch.testing.assert_close(table.finish(actual), model.logits(hidden), atol=5 * close, rtol=close)
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


def test_a_packed_model_is_rounded_as_if_it_were_not(integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generating packs a model, and training leaves its layers in the class that may be packed: they are the same layers."""
    monkeypatch.setattr(packing, "LEAST_MODEL", 0)
    monkeypatch.setattr(packing, "LEAST_WEIGHT", 0)
    expected = scores(quantize(made(), "int8"))
    model = packing.pack(made(), timing=lambda plain, laid: (True, True, True))
    packing.use_products(model, ())
    quantize(model, "int8")
    assert not any(isinstance(module, packing.Prepacked) for module in model.modules())
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
