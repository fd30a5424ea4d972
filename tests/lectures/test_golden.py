"""The lectures' worked examples, computed by heddle's public modules with the examples' weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import BlockConfig, EntryConfig, LayerNormConfig, RMSNormConfig, TransformerConfig
from heddle.config.layers import AttentionConfig, GatedConfig, MLPConfig, NormConfig
from heddle.look.weights import head_products
from heddle.model import Transformer
from heddle.model.entry import Entry
from heddle.model.head import Scores
from heddle.nn import (
    KERNELS,
    MLP,
    Attention,
    Block,
    Causal,
    Dropout,
    Everything,
    Gated,
    LayerNorm,
    Layout,
    Mask,
    RMSNorm,
    Setting,
    drop,
    masked_softmax,
)
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.norm import make_norm
from heddle.tasks.loss import cross_entropy
from tests.lectures.golden import (
    Case,
    Rule,
    attention,
    load_block,
    load_gated,
    load_mlp,
    load_model,
    load_norm,
    same,
    scope,
    watched,
)

kernels = pytest.mark.parametrize("kernel", KERNELS)
THREE = Layout.whole(1, 3)


def everything_of(module: Any, z: Tensor, where: Any) -> dict[str, Tensor]:
    """Output, heads, their concatenation, scores and weights of one call of attention with the reference kernel."""
    kernel = module.kernel
    with watched(scores=kernel.scores, weights=kernel.weights, heads=kernel, o=module.o) as seen:
        output = module(z[None], where)
    return {
        "output": output[0],
        "concat": seen["o_in"][0],
        "heads": seen["heads"][0],
        "scores": seen["scores"][0],
        "weights": seen["weights"][0],
    }


@pytest.mark.lecture("L0-36")
def test_softmax_rows() -> None:
    case = Case("softmax_rows")
    z = case.inputs["z"]
    same(masked_softmax(z, z.isfinite()), case.outputs["p"])
    same(masked_softmax(z, torch.ones_like(z, dtype=torch.bool)), case.outputs["p"])


ATTENTION: dict[str, tuple[int, str, Rule]] = {
    "attention_single_head": (1, "head_dim", Everything()),
    "attention_single_head_causal": (1, "head_dim", Causal()),
    "multihead_dk": (2, "head_dim", Everything()),
    "multihead_sqrt_d_literal": (2, "dim", Everything()),
    "multihead_causal_dk": (2, "head_dim", Causal()),
    "multihead_causal_sqrt_d_literal": (2, "dim", Causal()),
}
PARTS = ("scores", "weights", "heads", "concat", "output")


@pytest.mark.lecture("L0-32", "L0-40", "L1-27", "L2-03", "L3-15", "D-52", "L0-91", "L1-30", "D-09")
@pytest.mark.lecture("L0-41", "L0-42", "L0-45", "L2-05", "L3-22", "L3-23", "L3-24", "D-02")
@pytest.mark.lecture("L0-33", "L0-37", "L0-47", "L3-17", "L3-20", "L3-25")
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    """Whatever the case states: scores, -inf above the diagonal, weights, exactly 0 there, heads and what follows."""
    case, (heads, scale, rule) = Case(name), ATTENTION[name]
    where = scope(rule, "reference", THREE)
    actual = everything_of(attention(case.weights, heads=heads, scale=scale), case.inputs["Z"], where)
    stated = case.outputs.keys() & set(PARTS)
    assert {"weights", "output"} <= stated
    for part in stated:
        same(actual[part].reshape(case.outputs[part].shape), case.outputs[part])
    assert (actual["heads"].shape, actual["concat"].shape) == ((heads, 3, 4 // heads), (3, 4))
    if rule == Causal():
        allowed = where.mask.allowed[0, 0]
        assert torch.equal(allowed, torch.ones(3, 3, dtype=torch.bool).tril())
        assert (actual["weights"][:, ~allowed] == 0).all()
        assert "M" not in case.inputs or torch.equal(allowed, case.inputs["M"] == 0)


@pytest.mark.lecture("L0-34", "D-42")
def test_attention_single_head_merged_weights() -> None:
    """W_Q W_Kᵀ as one matrix in place of W_Q gives the same scores; multiplied out, it saves nothing."""
    case = Case("attention_single_head")
    module = attention(case.weights, heads=1)
    merged, written = head_products(module)
    same(merged[0].detach(), case.outputs["WQ_WKT"])
    same(written[0].detach(), case.weights["W_V"])  # W_O is the identity here
    one = attention({**case.weights, "W_Q": merged[0].detach(), "W_K": torch.eye(4, dtype=torch.float64)}, heads=1)
    actual = everything_of(one, case.inputs["Z"], scope(Everything(), "reference", THREE))
    torch.testing.assert_close(actual["scores"][0], case.outputs["scores"], rtol=0, atol=1e-12)


@pytest.mark.lecture("L0-34", "L0-44", "D-42")
def test_products_of_every_head() -> None:
    case = Case("multihead_dk")
    scores, written = head_products(attention(case.weights, heads=2))
    z = case.inputs["Z"]
    output = torch.zeros_like(z)
    for head in range(2):
        weights = (z @ scores[head] @ z.T / 2**0.5).softmax(-1)
        same(weights.detach(), case.outputs["weights"][head])
        output = output + weights @ z @ written[head]
        assert torch.linalg.matrix_rank(scores[head]) <= 2
    same(output.detach(), case.outputs["output"])


@pytest.mark.lecture("L0-01", "L0-88", "D-58")
def test_attention_sequential_prefixes() -> None:
    case = Case("attention_sequential_prefixes")
    z, module = case.inputs["Z"], attention(case.weights, heads=1)
    causal = everything_of(module, z, scope(Causal(), "reference", THREE))["output"]
    same(causal, case.outputs["last_rows"])
    for length, expected in enumerate(case.outputs["per_prefix"], start=1):
        actual = everything_of(module, z[:length], scope(Everything(), "reference", Layout.whole(1, length)))
        same(actual["weights"][0], expected["weights"])
        same(actual["output"], expected["output_all_rows"])
        same(actual["output"][-1], causal[length - 1])
        # Only the last row is the prediction: earlier ones have seen what came after them.
        assert all((actual["output"][row] - causal[row]).abs().max() > 1e-3 for row in range(length - 1))


@pytest.mark.lecture("L0-35")
@pytest.mark.parametrize(("scale", "name"), [("head_dim", "sqrt_dk"), ("dim", "sqrt_d")])
def test_attention_low_rank(scale: str, name: str) -> None:
    case = Case("attention_low_rank")
    shape = {"heads": 1, "head_dim": 2, "value_dim": 4}
    actual = everything_of(
        attention(case.weights, scale=scale, **shape), case.inputs["Z"], scope(Everything(), "reference", THREE)
    )
    expected = case.outputs[name]
    same(actual["scores"][0], expected["scores"])
    same(actual["weights"][0], expected["weights"])
    same(actual["output"], expected["output"])
    for kernel in KERNELS:
        module = attention(case.weights, kernel, scale=scale, **shape)
        same(module(case.inputs["Z"][None], scope(Everything(), kernel, THREE))[0], expected["output"])
    merged = head_products(attention(case.weights, **shape))[0][0].detach()
    same(merged, case.outputs["WQ_WKT"])
    assert torch.linalg.matrix_rank(merged) == case.outputs["rank"] == 2


@pytest.mark.lecture("L2-03", "L3-15", "L3-16")
def test_scaled_dot_product_five_keys() -> None:
    case = Case("scaled_dot_product_five_keys")
    q, k, v = (case.inputs[name][None, None] for name in "QKV")
    mask = Mask(Everything(), Layout.whole(1, 2), Layout.whole(1, 5))
    for kernel in KERNELS:
        module = Attention(AttentionConfig(heads=1, kernel=kernel), Setting(2)).kernel
        same(module(q, k, v, module.lower(mask))[0, 0], case.outputs["output"])
    reference = Attention(AttentionConfig(heads=1, kernel="reference"), Setting(2)).kernel
    with watched(scores=reference.scores, weights=reference.weights) as seen:
        reference(q, k, v, reference.lower(mask))
    same(seen["scores"][0, 0], case.outputs["scores"])
    same(seen["weights"][0, 0], case.outputs["weights"])
    unscaled = Attention(AttentionConfig(heads=1, kernel="reference", scale=1.0), Setting(2)).kernel
    with watched(scores=unscaled.scores) as seen:
        unscaled(q, k, v, unscaled.lower(mask))
    same(seen["scores"][0, 0], case.outputs["QKT"])


def test_multihead_with_an_identity_after_it_is_the_concatenation() -> None:
    case = Case("multihead_dk")
    weights = {name: case.weights[name] for name in ("W_Q", "W_K", "W_V")}
    module = attention(weights, heads=2)
    same(module(case.inputs["Z"][None], scope(Everything(), "reference", THREE))[0], case.outputs["concat"])
    wide = Attention(AttentionConfig(heads=12), Setting(768))
    assert wide.o.weight.numel() == 589_824


@kernels
@pytest.mark.lecture("L0-19", "L2-06")
def test_multihead_causal_right_pad(kernel: str) -> None:
    """In the example the padded token still asks; only as a key is it out of sight."""
    case = Case("multihead_causal_right_pad")
    where = scope(Causal(), kernel, THREE, Layout.padded((2,), 3))
    module = attention(case.weights, kernel, heads=2)
    with watched(o=module.o) as seen:
        same(module(case.inputs["Z"][None], where)[0], case.outputs["output"])
    same(seen["o_in"][0], case.outputs["concat"])
    if kernel == "reference":
        assert torch.equal(where.mask.allowed[0, 0], case.inputs["M_total"] == 0)
        same(everything_of(module, case.inputs["Z"], where)["weights"], case.outputs["weights"])


@kernels
@pytest.mark.lecture("L2-07", "D-10")
def test_multihead_causal_left_pad(kernel: str) -> None:
    case = Case("multihead_causal_left_pad")
    where = scope(Causal(), kernel, Layout.padded((2,), 3, "left"))
    module = attention(case.weights, kernel, heads=2)
    z = case.inputs["Z"][None].requires_grad_()
    with watched(o=module.o) as seen:
        output = module(z, where)[0]
    same(output, case.outputs["output"])
    same(seen["o_in"][0], case.outputs["concat"])
    assert (output[0] == 0).all()
    output.sum().backward()
    assert z.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    if kernel == "reference":
        assert torch.equal(where.mask.allowed[0, 0], case.inputs["M_total"] == 0)
        same(everything_of(module, case.inputs["Z"], where)["weights"], case.outputs["weights"])


@pytest.mark.lecture("L1-33", "D-08", "D-52")
def test_mask_zero_trap() -> None:
    """Scores that are 0 by themselves stay in sight."""
    case = Case("mask_zero_trap")
    q, k = (case.inputs[name][None, None] for name in "QK")
    mask = Mask(Causal(), THREE, THREE)
    kernel = Attention(AttentionConfig(heads=1, kernel="reference"), Setting(2)).kernel
    with watched(weights=kernel.weights) as seen:
        kernel(q, k, k, kernel.lower(mask))
    same(seen["weights"][0, 0], case.outputs["correct_weights"])
    unscaled = Attention(AttentionConfig(heads=1, kernel="reference", scale=1.0), Setting(2)).kernel
    for rule, expected in ((Everything(), case.inputs["QKT"]), (Causal(), case.outputs["correct_scores"])):
        with watched(scores=unscaled.scores) as raw:
            unscaled(q, k, k, unscaled.lower(Mask(rule, THREE, THREE)))
        same(raw["scores"][0, 0], expected)
    # The lecture's words: multiply by the mask first, and every zero becomes -inf, whether the mask made it or not.
    product = mask.dense()[0, 0] * case.inputs["QKT"]
    scores = product.masked_fill(product == 0, -torch.inf)
    same(scores, case.outputs["literal_scores"])
    literal = (scores / 2**0.5).softmax(-1)
    torch.testing.assert_close(literal, case.outputs["literal_weights"], rtol=0, atol=1e-11, equal_nan=True)
    assert literal[0].isnan().all()
    same(literal[1], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert (seen["weights"][0, 0, 1] - literal[1]).abs().max() > 0.3


@pytest.mark.lecture("L1-26", "L1-32")
def test_mask_zero_after_softmax() -> None:
    case = Case("mask_zero_after_softmax")
    scores, allowed = case.inputs["S"], Mask(Causal(), THREE, THREE).dense()[0, 0]
    actual = masked_softmax(scores, allowed)
    same(actual, case.outputs["right"])
    same(actual.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (actual[~allowed] == 0).all()
    zeroed = masked_softmax(scores, torch.ones_like(allowed)).tril()  # what must not be done
    same(zeroed, case.outputs["wrong"])
    same(zeroed.sum(-1), case.outputs["wrong_row_sums"])
    same(zeroed / zeroed.sum(-1, keepdim=True), case.outputs["wrong_renormalised"])
    same(actual, case.outputs["wrong_renormalised"])


@kernels
@pytest.mark.lecture("L1-04")
def test_mha_permutation(kernel: str) -> None:
    case = Case("mha_permutation")
    z, order = case.inputs["Z"], case.inputs["perm"].long()
    module, where = attention(case.weights, kernel, heads=2), scope(Everything(), kernel, THREE)
    same(module(z[None, order], where)[0], case.outputs["output"])
    same(module(z[None], where)[0, order], case.outputs["output"])


READINGS = {
    "biased_eps1e5": {},
    "biased_no_eps": {"eps": 0.0},
    "unbiased_no_eps": {"eps": 0.0, "unbiased": True},
    "annotated_transformer_unbiased_std_plus_eps": {"eps": 1e-6, "unbiased": True, "eps_outside": True},
}


@pytest.mark.lecture("L0-48", "L0-50", "L1-09", "L2-26", "L2-28", "L3-29", "D-04")
@pytest.mark.parametrize("name", READINGS)
def test_layernorm(name: str) -> None:
    case = Case("layernorm")
    norm = make_norm(LayerNormConfig.of(READINGS[name]), 4).double()
    load_norm(norm, case.weights["gain"], case.weights["shift"])
    actual = norm(case.inputs["x"])
    torch.testing.assert_close(actual, case.outputs[name], rtol=0, atol=1e-11, equal_nan=True)
    if norm.eps:
        assert torch.equal(actual[3], case.weights["shift"]), "the constant row"
    else:
        assert actual[3].isnan().all()
    for other in READINGS.keys() - {name}:
        assert (actual[0] - case.outputs[other][0]).abs().max() > 1e-6


@pytest.mark.lecture("L0-50", "L2-26", "L2-27", "L3-30")
def test_layernorm_unit_gain() -> None:
    case = Case("layernorm")
    norm = LayerNorm(4).double()
    load_norm(norm, torch.ones(4), torch.zeros(4))
    actual = norm(case.inputs["x"])
    same(actual, case.outputs["biased_eps1e5_unit_gain"])
    same(actual[:3].mean(-1), torch.zeros(3, dtype=torch.float64))
    variance = case.inputs["x"].var(-1, correction=0)
    same(variance, case.outputs["var_biased"])
    same(case.inputs["x"].mean(-1), case.outputs["mean"])
    same(actual.var(-1, correction=0), variance / (variance + 1e-5))
    assert norm.eps == 1e-5


@pytest.mark.lecture("L2-31", "D-60")
@pytest.mark.parametrize(("eps", "name"), [(1e-6, "eps1e6"), (1e-5, "eps1e5")])
def test_rmsnorm(eps: float, name: str) -> None:
    case = Case("rmsnorm")
    norm = RMSNorm(4, eps).double()
    norm.load_state_dict({"weight": case.weights["gain"]})
    actual = norm(case.inputs["x"])
    same(actual, case.outputs[name])
    assert (actual[-1] == 0).all()
    # Without gain and eps, a row is divided by its root mean square.
    bare = RMSNorm(4, 0.0).double()
    bare.load_state_dict({"weight": torch.ones(4)})
    rows = case.inputs["x"][:-1]
    same((rows / bare(rows)).nanmean(-1), case.outputs["rms_eps0"])


@pytest.mark.lecture("L0-68", "L1-18", "D-07", "D-34")
@pytest.mark.parametrize(
    ("name", "expected"), [("gelu", "gelu_erf"), ("gelu_tanh", "gelu_tanh"), ("relu", "relu"), ("silu", "silu")]
)
def test_activations(name: str, expected: str) -> None:
    case = Case("activations")
    same(ACTIVATIONS[name](case.inputs["x"]), case.outputs[expected])


@pytest.mark.lecture("L0-69")
def test_what_activations_are_made_of() -> None:
    """GELU(√2 z) = z/√2 · (1 + erf z); the sigmoid form of GELU is silu(1.702 z) / 1.702."""
    case = Case("activations")
    z = case.inputs["x"]
    same(ACTIVATIONS["gelu"](2**0.5 * z), z / 2**0.5 * (1 + case.outputs["erf"]))
    same(ACTIVATIONS["silu"](1.702 * z) / 1.702, case.outputs["gelu_sigmoid"])


@pytest.mark.lecture("L0-67", "L0-94", "L1-12", "L1-16", "L1-20", "L3-27")
@pytest.mark.parametrize(
    ("activation", "bias", "name"),
    [
        ("gelu", False, "gelu_no_bias"),
        ("gelu_tanh", False, "gelu_tanh_no_bias"),
        ("relu", True, "relu_bias"),
        ("silu", False, "silu_no_bias"),
    ],
)
def test_mlp(activation: str, bias: bool, name: str) -> None:
    case = Case("mlp")
    module = MLP(MLPConfig(hidden=16, activation=activation, bias=bias), Setting(4)).double()
    load_mlp(module, case.weights)
    actual = module(case.inputs["Z"]).hidden
    same(actual, case.outputs[name])
    for row in range(3):
        same(module(case.inputs["Z"][row]).hidden, actual[row])


@pytest.mark.lecture("L1-21")
@pytest.mark.parametrize(("activation", "name"), [("silu", "swiglu"), ("gelu", "geglu")])
def test_mlp_gated(activation: str, name: str) -> None:
    case = Case("mlp_gated")
    module = Gated(GatedConfig(hidden=6, activation=activation), Setting(4)).double()
    load_gated(module, case.weights)
    same(module(case.inputs["Z"]).hidden, case.outputs[name])


def block_of(kernel: str, placement: str, norm: NormConfig, activation: str, **mixer: Any) -> Block:
    attention = AttentionConfig.of({"heads": 2, "bias": False, "kernel": kernel, **mixer})
    ffn = MLPConfig.of({"activation": activation, "bias": False})
    return Block(
        BlockConfig.of({"mixer": attention, "ffn": ffn, "norm": norm, "placement": placement}), Setting(4)
    ).double()


@kernels
@pytest.mark.lecture("L0-28", "L1-54", "L1-76", "L1-91", "L2-24", "L2-34", "L2-35", "L3-28", "D-05", "D-43")
@pytest.mark.lecture("L0-26", "L1-07", "L2-22")
@pytest.mark.parametrize(
    ("name", "placement", "norm", "activation", "rule"),
    [
        ("block_pre_norm", "pre", LayerNormConfig(), "gelu", Causal()),
        ("block_pre_norm_gpt2_tanh", "pre", LayerNormConfig(), "gelu_tanh", Causal()),
        ("block_pre_norm_rms", "pre", RMSNormConfig(), "gelu", Causal()),
        ("block_post_norm_encoder", "post", LayerNormConfig(), "relu", Everything()),
        ("block_post_norm_causal", "post", LayerNormConfig(), "gelu", Causal()),
    ],
)
def test_block(name: str, placement: str, norm: NormConfig, activation: str, rule: Rule, kernel: str) -> None:
    case = Case(name)
    block = block_of(kernel, placement, norm, activation)
    load_block(block, case.weights)
    with watched(middle=block.ffn_residual.before) as seen:
        output = block(case.inputs["X"][None], scope(rule, kernel, THREE)).hidden[0]
    same(seen["middle_in"][0], case.outputs["Z"])
    same(output, case.outputs["output"])


@kernels
@pytest.mark.lecture("L0-27", "L0-28", "D-01")
@pytest.mark.parametrize(
    ("name", "eps", "scale", "rule"),
    [
        ("block_deck000_literal", 0.0, "dim", Everything()),
        ("block_deck000_literal_causal_dk", 1e-5, "head_dim", Causal()),
    ],
)
def test_block_deck000_literal(name: str, eps: float, scale: str, rule: Rule, kernel: str) -> None:
    """The second skip starts from the normed tensor, which equation (4) calls by the same name."""
    case = Case(name)
    literal = block_of(kernel, "literal", LayerNormConfig(eps=eps), "gelu", scale=scale)
    usual = block_of(kernel, "pre", LayerNormConfig(eps=eps), "gelu", scale=scale)
    for block in (literal, usual):
        load_block(block, case.weights)
    where = scope(rule, kernel, THREE)
    with watched(second=literal.ffn_residual.before) as seen:
        output = literal(case.inputs["X"][None], where)[0][0]
    same(seen["second"][0], case.outputs["Z"])
    same(output, case.outputs["output"])
    assert (usual(case.inputs["X"][None], where)[0][0] - output).abs().max() > 0.5


@kernels
@pytest.mark.lecture("L1-78", "D-46")
def test_cross_attention(kernel: str) -> None:
    case = Case("cross_attention")
    module = attention(case.weights, kernel, heads=2)
    where = scope(Everything(), kernel, Layout.whole(1, 2), THREE, case.inputs["memory"][None])
    with watched(o=module.o) as seen:
        output = module(case.inputs["decoder"][None], where)[0]
    same(seen["o_in"][0], case.outputs["concat"])
    same(output, case.outputs["output"])
    if kernel == "reference":
        with watched(weights=module.kernel.weights) as seen:
            module(case.inputs["decoder"][None], where)
        assert seen["weights"].shape == (1, 2, 2, 3)
        same(seen["weights"][0], case.outputs["weights"])


@kernels
@pytest.mark.lecture("L1-77", "L1-78", "L1-80", "L2-34", "L3-06", "D-46")
def test_block_decoder_cross(kernel: str) -> None:
    case = Case("block_decoder_cross")
    mixer = {"kind": "attention", "heads": 2, "bias": False, "kernel": kernel}
    ffn = {"kind": "mlp", "activation": "relu", "bias": False}
    block = Block(
        BlockConfig.of({"mixer": mixer, "cross": mixer, "ffn": ffn, "placement": "post"}), Setting(4)
    ).double()
    load_block(block, case.weights)
    two = Layout.whole(1, 2)
    across = scope(Everything(), kernel, two, THREE, case.inputs["memory"][None])
    with watched(own=block.cross_residual.before, cross=block.ffn_residual.before) as seen:
        output = block(case.inputs["decoder"][None], scope(Causal(), kernel, two), source=across).hidden[0]
    same(seen["own_in"][0], case.outputs["after_self"])
    same(seen["cross_in"][0], case.outputs["after_cross"])
    same(output, case.outputs["output"])


@pytest.mark.lecture("L0-57", "L0-61", "L0-63", "D-03")
@pytest.mark.parametrize("style", ["inverted", "classic"])
def test_dropout(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the example's mask in place of a drawn one."""
    case = Case("dropout")
    x, mask, rate = case.inputs["x"], case.inputs["mask"], case.inputs["p_drop"]
    assert rate == 1 - case.inputs["p_keep"]
    module = Dropout(rate, classic=style == "classic")
    with monkeypatch.context() as drawn:
        drawn.setattr("heddle.nn.dropout.keep_mask", lambda like, rate: mask.bool())
        same(module.train()(x), case.outputs[f"{style}_train"])
    same(module.eval()(x), case.outputs[f"{style}_predict"])
    same(drop(x, mask, rate), case.outputs["inverted_train"])


@pytest.mark.lecture("L0-64", "L0-65", "D-11")
def test_attention_dropout() -> None:
    """The kernel drops weights, T × T for each head; with the example's mask in place of a drawn one."""
    case = Case("attention_dropout")
    scores, keep, rate = case.inputs["S"], case.inputs["mask"], case.inputs["p_drop"]
    kernel = KERNELS["reference"](1.0, rate).train()
    kernel.dropout.register_forward_hook(lambda module, inputs, output: drop(inputs[0], keep, rate))
    values = attention({**case.weights, "W_Q": torch.eye(4), "W_K": torch.eye(4)}, heads=1).v(case.weights["Z"])
    # With the identity as keys, queries are scores.
    q, k, v = scores[None, None], torch.eye(3, dtype=torch.float64)[None, None], values[None, None]
    with watched(weights=kernel.weights, dropped=kernel.dropout) as seen:
        output = kernel(q, k, v, kernel.lower(Mask(Causal(), THREE, THREE)))
    same(seen["weights"][0, 0], case.outputs["weights"])
    assert seen["dropped_in"].shape == (1, 1, 3, 3)
    same(seen["dropped"][0, 0], case.outputs["dropped"])
    same(output[0, 0], case.outputs["output"])


# Deck 000 to the letter: no biases, no eps, scores over √d, the second skip from the normed tensor, no final norm.
LITERAL = {
    "decoder.block.mixer": {"kind": "attention", "heads": 2, "bias": False, "scale": "dim"},
    "decoder.block.ffn.bias": False,
    "decoder.block.norm": {"kind": "layer", "eps": 0.0},
    "decoder.block.placement": "literal",
}
CHANGES: dict[str, dict[str, Any]] = {
    "tiny_lm": {},
    "tiny_lm_deck000_literal": LITERAL,
    "tiny_lm_tanh_gelu": {"decoder.block.ffn.activation": "gelu_tanh"},
}
STATED = ("hidden", "final", "logits", "probs", "argmax", "loss_per_token", "loss", "perplexity")


def tiny_lm(name: str = "tiny_lm", kernel: str = "reference") -> Transformer:
    """V = 5, T = 4, d = 4, h = 2, L = 2."""
    stack = {"depth": 2, "block": {"mixer": {"heads": 2}}, "entry": {"positions": "learned"}}
    config = TransformerConfig.of({"vocab_size": 5, "dim": 4, "context": 4, "decoder": stack})
    model = Transformer(config.override({**CHANGES[name], "decoder.block.mixer.kernel": kernel})).double()
    load_model(model, Case("tiny_lm").weights)
    return model


def results(model: Transformer, case: Case) -> dict[str, Tensor]:
    """What a case of the tiny model may state, by its name there."""
    ids, targets = case.inputs["ids"].long()[None], case.inputs["targets"].long()
    first, second = model.decoder.blocks
    with watched(entry=model.decoder.entry, first=first, second=second) as seen:
        final = model(ids).hidden
    logits = model.logits(final)[0]
    scores, one = Scores(model.head_weight(), 5), torch.ones(1).double()
    loss, _ = cross_entropy(final[0], targets, torch.full((3,), 1 / 3, dtype=torch.float64), scores)
    alone = [cross_entropy(final[0, row, None], targets[row, None], one, scores)[0] for row in range(3)]
    values = {"final": final[0], "logits": logits, "probs": logits.softmax(-1), "argmax": logits.argmax(-1).double()}
    values |= {"loss": loss, "perplexity": loss.exp(), "loss_per_token": torch.stack(alone)}
    return {**values, "hidden": torch.stack([seen[name][0] for name in ("entry", "first", "second")])}


@kernels
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.lecture(
    "L0-01", "L0-09", "L0-10", "L0-27", "L0-73", "L0-74", "L0-84", "L1-24", "L1-84", "L1-86", "L1-92", "L2-59"
)
def test_tiny_lm(name: str, kernel: str) -> None:
    case = Case(name)
    model, ids = tiny_lm(name, kernel), case.inputs["ids"].long()[None]
    actual = results(model, case)
    stated = case.outputs.keys() & set(STATED)
    assert {"logits", "argmax", "loss"} <= stated
    for key in stated:
        same(actual[key], torch.as_tensor(case.outputs[key], dtype=torch.float64))
    for length in (1, 2):
        same(model.logits(model(ids[:, :length]).hidden)[0, -1], actual["logits"][length - 1])


@pytest.mark.lecture("L1-92", "L0-10")
def test_tiny_lm_parameters_and_the_tanh_form() -> None:
    case = Case("tiny_lm")
    for tied, name in ((True, "parameters_tied"), (False, "parameters_untied")):
        model = Transformer(tiny_lm().config.override({"head.tied": tied}))
        assert sum(parameter.numel() for parameter in model.parameters()) == case.outputs[name]
    assert case.outputs["parameters_tied"] == 532
    named = tiny_lm("tiny_lm_deck000_literal").named_parameters()
    bare = sum(parameter.numel() for name, parameter in named if "_residual" not in name)
    assert bare == Case("tiny_lm_deck000_literal").outputs["parameters_no_bias_no_norm"] == 420
    difference = (Case("tiny_lm_tanh_gelu").outputs["logits"] - case.outputs["logits"]).abs().max()
    stated = Case("tiny_lm_tanh_gelu").outputs["max_abs_logit_difference_to_erf"]
    same(difference, torch.tensor(stated, dtype=torch.float64))


@pytest.mark.lecture("L0-14", "L0-15", "L0-16", "L0-17", "L0-22", "L2-51", "L2-54", "L3-07", "D-28")
def test_embedding() -> None:
    case = Case("embedding")
    ids = case.inputs["ids"].long()[None]
    model = tiny_lm()
    model.embedding.load_state_dict({"weight": case.weights["E"]})
    model.decoder.entry.positions.load_state_dict({"weight": case.weights["P"]})
    vectors = model.embedding(ids)
    assert vectors.shape == (1, 3, 4)
    same(vectors[0], case.outputs["lookup"])
    same(vectors[0], case.outputs["one_hot_product"])
    same(model.decoder.entry(vectors, THREE)[0], case.outputs["sum"])


@pytest.mark.lecture("L0-16", "D-28")
def test_embedding_beside_its_position() -> None:
    case = Case("embedding")
    config = TransformerConfig.of(
        {
            "vocab_size": 5,
            "dim": 8,
            "context": 4,
            "head": {"tied": False},
            "decoder": {
                "depth": 1,
                "block": {"mixer": {"kind": "attention", "heads": 2}},
                "entry": {"positions": "learned", "combine": "concat", "position_dim": 4},
            },
        }
    )
    model = Transformer(config).double()
    model.embedding.load_state_dict({"weight": case.weights["E"]})
    model.decoder.entry.positions.load_state_dict({"weight": case.weights["P"]})
    actual = model.decoder.entry(model.embedding(case.inputs["ids"].long()[None]), THREE)
    assert actual.shape == (1, 3, 8)
    same(actual[0], case.outputs["concat"])


@pytest.mark.lecture("L3-11", "L3-13", "D-29")
def test_sinusoidal_positions() -> None:
    """In a model of double precision they are computed in double precision."""
    case = Case("sinusoidal_positions")

    def placed(length: int, dim: int) -> Tensor:
        entry = Entry(EntryConfig(positions="sinusoidal"), dim, 16, Dropout(0.0))
        return entry(torch.zeros(2, length, dim, dtype=torch.float64), Layout.whole(2, length))

    small, slide = placed(3, 4), placed(10, 64)
    same(small[0], case.outputs["pe_3x4"])
    assert torch.equal(slide[0], slide[1]), "the same for every sentence of a batch"
    for row in (1, 9):
        same(slide[0, row, :4], case.outputs[f"pe_10x64_row{row}_first4"])
        same(slide[0, row, -2:], case.outputs[f"pe_10x64_row{row}_last2"])
