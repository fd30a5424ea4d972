"""A stack by itself: vectors in, vectors out."""

import pytest
import torch
from torch import nn

from heddle.config import RMSNormConfig, TransformerConfig
from heddle.model import Stack
from heddle.nn import Causal, Everything, LayerNorm, Layout, RMSNorm
from tests.laws.models import COMBINATIONS, config_of, name_of


def stack_of(config: TransformerConfig, rule: Causal | Everything) -> Stack:
    stack = Stack(config.decoder, config.dim, config.context, rule).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack.eval()


@pytest.mark.lecture("L1-23")
@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
def test_a_bare_stack_works_and_keeps_the_shape(rule: Causal | Everything) -> None:
    stack = stack_of(config_of(depth=3), rule)
    assert len(stack.blocks) == 3
    for rows, length in ((1, 1), (2, 9)):
        x = torch.randn(rows, length, 16, dtype=torch.float64)
        assert stack(x, Layout.plain(rows, length)).shape == x.shape


def test_without_a_mask_the_last_token_reaches_the_first_output() -> None:
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    changed = x.clone()
    changed[:, -1] += 1
    layout = Layout.plain(1, 5)
    for rule, reaches in ((Everything(), True), (Causal(), False)):
        stack = stack_of(config_of(), rule)
        assert torch.equal(stack(x, layout)[:, 0], stack(changed, layout)[:, 0]) != reaches


@pytest.mark.lecture("D-06")
@pytest.mark.parametrize(
    ("placement", "wanted", "ends"),
    [("pre", None, True), ("post", None, False), ("pre", False, False), ("post", True, True), ("pre", True, True)],
)
def test_a_norm_ends_the_stack_when_it_stands_before_the_branches(
    placement: str, wanted: bool | None, ends: bool
) -> None:
    stack = stack_of(config_of(placement=placement, final_norm=wanted), Causal())
    assert isinstance(stack.final_norm, LayerNorm if ends else nn.Identity)


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_masks_and_angles_are_made_once(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(config, Causal())
    calls = {"lower": 0, "rotation": 0}
    lower = stack.sight.kernel.lower

    def counted(mask: object) -> object:
        calls["lower"] += 1
        return lower(mask)

    monkeypatch.setattr(stack.sight.kernel, "lower", staticmethod(counted))
    if stack.sight.rotary is not None:
        stack.sight.rotary.register_forward_hook(lambda *given: calls.update(rotation=calls["rotation"] + 1))
    stack(torch.randn(2, 4, 16, dtype=torch.float64), Layout.plain(2, 4))
    assert calls == {"lower": 1, "rotation": int(config.decoder.block.mixer.relative is not None)}


def test_the_norm_is_the_blocks_kind() -> None:
    assert isinstance(stack_of(config_of(norm=RMSNormConfig()), Causal()).final_norm, RMSNorm)
