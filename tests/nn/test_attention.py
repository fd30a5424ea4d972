"""Attention: shapes, what mixes with what, averages, and who is told about the tokens' places."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import AttentionConfig, LayerNormConfig, RMSNormConfig
from heddle.model import Stack
from heddle.nn import KERNELS, Attention, Block, Causal, Everything, Layout, Output, Pattern, Rotary, Scope, Setting
from heddle.nn.attention import split_heads
from heddle.nn.convolution import Convolution
from heddle.nn.norm import LayerNorm, RMSNorm
from heddle.nn.recurrent import Recurrent

Rule = Causal | Everything


def make(dim: int = 8, heads: int = 2, kernel: str = "reference", **options: Any) -> Attention:
    return Attention(AttentionConfig.of({"heads": heads, "kernel": kernel, **options}), Setting(dim)).double()


def seen(rule: Rule, length: int, kernel: str = "reference", rows: int = 1) -> Scope:
    layout = Layout.whole(rows, length)
    return Pattern(rule, kernel=kernel).scope(layout, layout)


@pytest.mark.lecture("L0-33")
def test_the_four_projections() -> None:
    module = Attention(AttentionConfig(heads=12, bias=False), Setting(768))
    shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    assert shapes == {f"{letter}.weight": (768, 768) for letter in "qkvo"}
    assert sum(module.get_parameter(f"{letter}.weight").numel() for letter in "qkv") == 1_769_472
    assert module.o.weight.numel() == 589_824
    z = torch.randn(1, 5, 768)
    assert module.q(z).shape == module.k(z).shape == module.v(z).shape == (1, 5, 768)


@pytest.mark.lecture("L0-44")
def test_two_factors_weigh_less_than_their_product() -> None:
    """d = 768, h = 12: 98,304 numbers a head instead of 589,824, and the product has rank 64 at most."""
    module = Attention(AttentionConfig(heads=12, scale=1.0, kernel="reference", bias=False), Setting(768)).double()
    factors = (module.q.weight.numel() + module.k.weight.numel()) // 12
    scores: list[Tensor] = []
    module.kernel.scores.register_forward_hook(lambda kernel, inputs, output: scores.append(output))
    with torch.no_grad():
        module(torch.eye(768, dtype=torch.float64)[None], seen(Everything(), 768))
    merged = scores[0][0, 0]
    assert (merged.numel(), factors) == (589_824, 98_304)
    assert torch.linalg.matrix_rank(merged) <= 64


@pytest.mark.lecture("L1-02", "L3-19")
@pytest.mark.parametrize("kernel", KERNELS)
def test_as_many_vectors_come_out_as_go_in(kernel: str) -> None:
    module = make(kernel=kernel)
    for length in range(1, 9):
        for rule in (Causal(), Everything()):
            x = torch.randn(3, length, 8, dtype=torch.float64)
            assert module(x, seen(rule, length, kernel, rows=3)).shape == x.shape


@pytest.mark.lecture("L1-03")
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_vector_reaches_every_other_unless_masked(kernel: str) -> None:
    module = make(kernel=kernel)
    z = torch.randn(5, 8, dtype=torch.float64)

    def jacobian(rule: Rule) -> Tensor:
        whole = torch.autograd.functional.jacobian(lambda x: module(x[None], seen(rule, 5, kernel))[0], z)
        assert isinstance(whole, Tensor)
        return whole.abs().amax((1, 3))  # of output i with respect to input j

    assert (jacobian(Everything()) > 0).all()
    masked = jacobian(Causal())
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert (masked[later] == 0).all()
    assert (masked[~later] > 0).all()


@pytest.mark.lecture("L0-37")
def test_values_are_made_row_by_row() -> None:
    """Exactly: small whole numbers, so that no order of summing rounds."""
    module = make(bias=False)
    with torch.no_grad():
        module.v.weight.copy_(torch.randint(-9, 10, module.v.weight.shape))
    z = torch.randint(-9, 10, (6, 8)).double()
    whole = module.v(z)
    for row in range(6):
        assert torch.equal(module.v(z[row]), whole[row])


@pytest.mark.lecture("L0-38")
@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
def test_attention_is_a_weighted_average(rule: Rule) -> None:
    module, where = make(), seen(rule, 7)
    outputs: dict[str, Tensor] = {}
    module.kernel.weights.register_forward_hook(lambda kernel, inputs, output: outputs.update(weights=output))
    module.kernel.register_forward_hook(lambda kernel, inputs, output: outputs.update(output=output, values=inputs[2]))
    with torch.no_grad():
        module(torch.randn(1, 7, 8, dtype=torch.float64), where)
    weights, output, values = outputs["weights"][0], outputs["output"][0], outputs["values"][0]
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7, dtype=torch.float64), rtol=0, atol=1e-12)
    for query in range(7):
        allowed = values[:, : query + 1] if rule == Causal() else values
        assert (output[:, query] <= allowed.amax(1) + 1e-12).all()
        assert (output[:, query] >= allowed.amin(1) - 1e-12).all()


@pytest.mark.lecture("L0-43", "L3-21")
def test_a_head_has_its_share_of_the_width() -> None:
    module = Attention(AttentionConfig(heads=12), Setting(768))
    assert module.head_dim == 64
    assert split_heads(module.q.weight.T[None], 64).shape == (1, 12, 768, 64)
    assert AttentionConfig(heads=8).width(64) == 8
    assert AttentionConfig(heads=8).width(512) == 64


@pytest.mark.lecture("L0-45")
def test_heads_are_blocks_of_neighbouring_columns() -> None:
    x = torch.arange(6.0)[None, None]
    assert split_heads(x, 2)[0, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(split_heads(x, 2).transpose(1, 2).flatten(2), x)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"q": (8, 8), "k": (8, 8), "v": (8, 8), "o": (8, 8)}),
        ({"kv_heads": 2}, {"q": (8, 8), "k": (4, 8), "v": (4, 8), "o": (8, 8)}),
        ({"kv_heads": 1, "head_dim": 6}, {"q": (24, 8), "k": (6, 8), "v": (6, 8), "o": (8, 24)}),
        ({"head_dim": 2, "value_dim": 5}, {"q": (8, 8), "k": (8, 8), "v": (20, 8), "o": (8, 20)}),
    ],
)
def test_projections_have_the_sizes_that_were_asked_for(
    options: dict[str, int], shapes: dict[str, tuple[int, int]]
) -> None:
    module = make(heads=4, **options)
    assert {letter: tuple(getattr(module, letter).weight.shape) for letter in "qkvo"} == shapes
    assert module(torch.randn(1, 3, 8, dtype=torch.float64), seen(Causal(), 3)).shape == (1, 3, 8)


@pytest.mark.parametrize(
    ("scale", "number"),
    [("head_dim", 4**-0.5), ("dim", 8**-0.5), (0.3, 0.3), (1, 1.0)],
    ids=["head_dim", "dim", "0.3", "1"],
)
def test_scores_are_scaled_as_asked_for(scale: str | float, number: float) -> None:
    assert make(heads=2, scale=scale).kernel.scale == pytest.approx(number, rel=1e-15)


def test_queries_and_keys_have_norms_of_their_own() -> None:
    module = make(qk_norm=RMSNormConfig(eps=1e-4))
    assert isinstance(module.q_norm, RMSNorm)
    assert isinstance(module.k_norm, RMSNorm)
    assert module.q_norm is not module.k_norm
    assert module.q_norm.weight.shape == (4,)
    assert module.q_norm.eps == 1e-4
    assert isinstance(make(qk_norm=LayerNormConfig()).q_norm, LayerNorm)
    assert isinstance(make().q_norm, torch.nn.Identity)


def test_normed_queries_have_no_length() -> None:
    """With norms over each head, scaling W_Q changes nothing; the norm comes before the rotation."""
    module = make(qk_norm=RMSNormConfig(eps=1e-30), bias=False)
    torch.nn.init.ones_(module.q_norm.weight)
    torch.nn.init.ones_(module.k_norm.weight)
    x, where = torch.randn(1, 5, 8, dtype=torch.float64), seen(Causal(), 5)
    before = module(x, where)
    with torch.no_grad():
        module.q.weight.mul_(3.0)
        module.k.weight.mul_(0.2)
    torch.testing.assert_close(module(x, where), before, rtol=0, atol=1e-12)


def test_a_scope_holds_a_lowered_mask_and_a_rotation() -> None:
    layout = Layout.padded((3, 2), 3)
    scope = Pattern(Causal(), kernel="plain").scope(layout, relative=Rotary(4))
    assert scope.mask is not None
    assert scope.mask.kernel == "plain"
    assert scope.rotation is not None
    assert scope.rotation[0].shape == (1, 1, 3, 4)
    assert Pattern(Causal(), kernel="plain").scope(layout, layout).rotation is None


@pytest.mark.lecture("L1-15")
def test_signatures_speak_of_batch_tokens_and_width() -> None:
    for kind in (Attention, Convolution, Recurrent):
        notes = kind.forward.__annotations__
        assert notes["x"].dim_str == notes["return"].dim_str == "B T D"
    for stack in (Block, Stack):  # with positions concatenated to them, token vectors are narrower than the model
        notes = stack.forward.__annotations__
        assert notes["x"].dim_str == ("B T d" if stack is Stack else "B T D")
        assert notes["return"] is Output
