"""A stack by itself: vectors in, vectors out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import BucketsConfig, DropoutConfig, RMSNormConfig, StackConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Stack
from heddle.nn import LayerNorm, Layout, RMSNorm
from heddle.nn.kernels import KERNELS, Lowered
from heddle.nn.output import EncoderOutput
from tests.models import COMBINATIONS, LAYERED, config_of, name_of
from tests.refusing import refusal


def stack_of(config: TransformerConfig, causal: bool = True) -> Stack:
    stack = Stack(config.decoder, config.dim, config.context, causal).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack.eval()


@pytest.mark.lecture("L1-23")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "everything"])
def test_a_bare_stack_works_and_keeps_the_shape(causal: bool) -> None:
    stack = stack_of(config_of(depth=3), causal)
    assert len(stack.blocks) == 3
    for rows, length in ((1, 1), (2, 9)):
        x = torch.randn(rows, length, 16, dtype=torch.float64)
        assert stack(x, Layout.whole(rows, length)).hidden.shape == x.shape


def test_without_a_mask_the_last_token_reaches_the_first_output() -> None:
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    changed = x.clone()
    changed[:, -1] += 1
    layout = Layout.whole(1, 5)
    for causal in (True, False):
        stack = stack_of(config_of(), causal)
        assert torch.equal(stack(x, layout).hidden[:, 0], stack(changed, layout).hidden[:, 0]) == causal


@pytest.mark.lecture("D-06")
@pytest.mark.parametrize(
    ("placement", "expected", "ends"),
    [("pre", None, True), ("post", None, False), ("pre", False, False), ("post", True, True), ("pre", True, True)],
)
def test_a_norm_ends_the_stack_when_it_stands_before_the_branches(
    placement: str, expected: bool | None, ends: bool
) -> None:
    stack = stack_of(config_of(placement=placement, final_norm=expected))
    assert isinstance(stack.final_norm, LayerNorm if ends else nn.Identity)


@pytest.mark.parametrize("config", [each for each in COMBINATIONS if each not in LAYERED], ids=name_of)
def test_masks_and_angles_are_made_once(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each pattern, however many layers have it."""
    deep = config.override({"decoder.depth": 4})
    stack = stack_of(deep)
    attending = {block.mixer for block in deep.decoder.blocks if block.mixer.kind in ("attention", "latent")}
    turned = {mixer for mixer in attending if mixer.relative is not None}
    calls = {"lower": 0, "relative": 0}
    for kernel in dict.fromkeys(KERNELS.values()):
        monkeypatch.setattr(kernel, "lower", staticmethod(counted(kernel.lower, calls)))
    for relative in stack.relative:
        relative.register_forward_hook(lambda *args: calls.update(relative=calls["relative"] + 1))
    x = torch.randn(2, 4, config.decoder.entry.tokens_dim(16), dtype=torch.float64)
    stack(x, Layout.whole(2, 4))
    assert calls == {"lower": len(attending), "relative": len(turned)}


def counted(lower: Callable[..., Lowered], calls: dict[str, int]) -> Callable[..., Lowered]:
    """The same lowering, counted."""

    def lowered(*args: Any) -> Lowered:
        calls["lower"] += 1
        return lower(*args)

    return lowered


def test_layers_with_equal_patterns_share_their_scope() -> None:
    """Every second layer with a window: two patterns in four layers."""
    override = {"layers": "::2", "block": {"mixer": {"window": 3}}}
    stack = stack_of(config_of(depth=4).override({"decoder.overrides": [override]}))
    first, second, third, fourth = stack.scopes(Layout.whole(2, 4))
    assert len(set(stack.patterns)) == 2
    assert first is third
    assert second is fourth
    assert first.mask is not None
    assert second.mask is not None
    assert (first.mask.window, second.mask.window) == (3, None)


BUCKETS = BucketsConfig(buckets=8, furthest=20)


@pytest.mark.parametrize(
    ("differs", "patterns"),
    [({"kernel": "plain"}, 2), ({"window": 3}, 2), ({"cap": 2.0}, 2), ({"dropout": 0.1}, 2), ({"kv_heads": 2}, 1)],
    ids=str,
)
def test_layers_share_their_buckets_whatever_their_pattern(differs: dict[str, Any], patterns: int) -> None:
    """One table for a stack, under one name, and every layer's distances are looked up there."""
    config = config_of(depth=3, relative=BUCKETS, positions="none")
    mixed = config.override({"decoder.overrides": [{"layers": "1", "block": {"mixer": differs}}]})
    stack = stack_of(mixed)
    assert [name for name, _ in stack.named_parameters() if "relative" in name] == ["relative.0.weight"]
    assert len(set(stack.patterns)) == patterns
    biases = [scope.mask.bias for scope in stack.scopes(Layout.whole(1, 6)) if scope.mask is not None]
    for bias in biases[1:]:
        assert torch.equal(bias, biases[0])
    stack(torch.randn(1, 6, 16, dtype=torch.float64), Layout.whole(1, 6)).hidden.sum().backward()
    assert stack.relative[0].weight.grad.abs().sum() > 0


def test_other_buckets_are_another_table() -> None:
    relative = {"kind": "buckets", "buckets": 4, "furthest": 20}
    config = config_of(depth=2, relative=BUCKETS, positions="none")
    mixed = config.override({"decoder.overrides": [{"layers": "1", "block": {"mixer": {"relative": relative}}}]})
    tables = [value.shape for name, value in stack_of(mixed).named_parameters() if "relative" in name]
    assert tables == [(8, 4), (4, 4)]


@pytest.mark.parametrize("cross", [{"cap": 5.0}, {"dropout": 0.1}], ids=str)
def test_what_crosses_is_lowered_once(cross: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch's fused kernel cannot do what the layers need."""
    block = {"mixer": {"heads": 2}, "cross": {"heads": 2, **cross}}
    data = {"depth": 3, "block": block}
    drops = DropoutConfig(mask="batch")
    stack = Stack(StackConfig.of(data), 16, 8, dropout=drops)
    calls = {"lower": 0}
    for kernel in dict.fromkeys(KERNELS.values()):
        monkeypatch.setattr(kernel, "lower", staticmethod(counted(kernel.lower, calls)))
    encoded = EncoderOutput(torch.randn(1, 1000, 16), Layout.whole(1, 1000))
    stack.eval()(torch.randn(1, 4, 16), Layout.whole(1, 4), encoded=encoded)
    assert calls == {"lower": 2}, "once for the layers' own, once for the source"


@pytest.mark.parametrize(("training", "expected"), [(True, "plain"), (False, "blockwise")])
def test_the_kernel_is_chosen_for_training(training: bool, expected: str) -> None:
    """What `auto` takes for many keys must drop weights in training; in prediction it need not."""
    capped = {"heads": 2, "cap": 5.0, "dropout": 0.1}
    stack = Stack(StackConfig.of({"depth": 1, "block": {"mixer": capped, "cross": capped}}), 16, 8).train(training)
    layout = Layout.whole(1, 1000)
    scopes = [*stack.scopes(layout), *stack.source_scopes(layout, EncoderOutput(torch.randn(1, 1000, 16), layout))]
    assert [scope.mask.kernel for scope in scopes if scope and scope.mask] == [expected, expected]


def test_types_without_a_table_are_refused() -> None:
    stack, x = stack_of(config_of()), torch.randn(1, 3, 16, dtype=torch.float64)
    with pytest.raises(HeddleError, match=r"this stack has no table of token types"):
        stack(x, Layout.whole(1, 3), types=torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vectors_in_another_dtype_than_the_weights_are_refused(dtype: torch.dtype) -> None:
    stack, layout = stack_of(config_of()), Layout.whole(1, 3)
    line = refusal(lambda: stack(torch.randn(1, 3, 16, dtype=dtype), layout))
    assert line.startswith("Stack: x = ")
    assert "must be of float64, as the stack's weights are: x.to(torch.float64)" in line
    with torch.autocast("cpu", dtype=torch.bfloat16):  # torch casts by itself
        assert stack.float()(torch.randn(1, 3, 16, dtype=dtype), layout).hidden.shape == (1, 3, 16)


def test_the_norm_is_the_blocks_kind() -> None:
    assert isinstance(stack_of(config_of(norm=RMSNormConfig())).final_norm, RMSNorm)
