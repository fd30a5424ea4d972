"""Blocks: two branches, two norms, two skips; dropout on each branch."""

from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import AttentionConfig, BlockConfig, GatedConfig, MLPConfig, RMSNormConfig
from heddle.errors import HeddleError
from heddle.nn import MLP, Attention, Block, Causal, Dropout, Gated, Layout, Pattern, Residual, Scope, Setting
from heddle.nn.block import WIRINGS
from heddle.nn.norm import LayerNorm, RMSNorm

SCOPE: Scope = Pattern(Causal(), kernel="auto").scope(Layout.whole(2, 5), Layout.whole(2, 5))


def make(dim: int = 8, **options: Any) -> Block:
    return Block(BlockConfig.of({"mixer": {"heads": 2}, **options}), Setting(dim)).double()


def filled(block: Block) -> Block:
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block


@pytest.mark.lecture("L2-32")
def test_what_a_block_holds() -> None:
    dim = 768

    def count(block: Block) -> dict[str, int]:
        sizes = {"mixer.": 0, "ffn.": 0, "residual": 0}
        for name, parameter in block.named_parameters():
            (part,) = [part for part in sizes if part in name and not ("_residual" in name and part != "residual")]
            sizes[part] += parameter.numel()
        return sizes

    with torch.device("meta"):
        full = count(Block(BlockConfig(mixer=AttentionConfig(heads=12)), Setting(dim)))
        bare = BlockConfig(mixer=AttentionConfig(heads=12, bias=False), ffn=MLPConfig(bias=False), norm=RMSNormConfig())
        lean = count(Block(bare, Setting(dim)))
    assert full == {"mixer.": 4 * dim**2 + 4 * dim, "ffn.": 8 * dim**2 + 5 * dim, "residual": 4 * dim}
    assert lean == {"mixer.": 4 * dim**2, "ffn.": 8 * dim**2, "residual": 2 * dim}


def test_a_block_has_four_kinds_of_parts() -> None:
    block = make(dropout=0.1)
    kinds = [type(module) for module in block.modules()]
    assert kinds.count(Attention) == 1
    assert kinds.count(MLP) == 1
    assert kinds.count(LayerNorm) == 2
    assert [residual.dropout.rate for residual in (block.mixer_residual, block.ffn_residual)] == [0.1, 0.1]


@pytest.mark.lecture("L0-53")
def test_without_weights_a_block_is_the_identity() -> None:
    block = filled(make())
    for branch in (block.mixer, block.ffn):
        for parameter in branch.parameters():
            nn.init.zeros_(parameter)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(block(x, SCOPE)[0], x)


@pytest.mark.lecture("L0-29")
def test_dropping_every_branch_leaves_the_skip() -> None:
    block = filled(make(dropout=1 - 1e-12)).train()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(block(x, SCOPE)[0], x)
    assert not torch.equal(block.eval()(x, SCOPE)[0], x)


@pytest.mark.lecture("L0-29")
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_dropout_acts_on_the_branch_before_the_sum(placement: str) -> None:
    residual = Residual(placement, nn.Identity, 0.5).train()
    torch.manual_seed(0)
    x = torch.full((1, 1, 1000), 10.0)
    output = residual.leave(x, residual.enter(x), torch.ones_like(x))
    assert set(output.unique().tolist()) == {10.0, 12.0}


@pytest.mark.parametrize("placement", ["pre", "post", "output"])
def test_a_branch_is_scaled_before_the_sum(placement: str) -> None:
    residual = Residual(placement, Doubled, scale=0.25)
    x, change = torch.full((1, 1, 3), 10.0), torch.full((1, 1, 3), 4.0)
    expected = {"pre": 11.0, "post": 22.0, "output": 12.0}[placement]
    assert residual.leave(x, residual.enter(x), change).tolist() == [[[expected] * 3]]


class Doubled(nn.Module):
    """Stands for a norm: it can be seen where it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("pre", 3 + (2 * 3 + 1)), ("post", 2 * (3 + (3 + 1))), ("sandwich", 3 + 2 * (2 * 3 + 1)), ("output", 3 + 2 * (3 + 1)),
     ("literal", 2 * 3 + (2 * 3 + 1)), ("bare", 2 * 3 + 1), ("none", 3 + (3 + 1))],
)  # fmt: skip
def test_where_the_norm_stands(placement: str, expected: float) -> None:
    residual, x = Residual(placement, Doubled), torch.full((1, 1, 1), 3.0)
    h = residual.enter(x)
    output = residual.leave(x, h, h + 1)
    assert output.item() == expected


def test_parallel_branches_have_norms_of_their_own() -> None:
    """Both read the block's input, and their outputs are added to it."""
    config = BlockConfig.of({"mixer": {"heads": 2}, "wiring": "parallel"})
    block, x = filled(WIRINGS[config.wiring](config, Setting(8)).double()), torch.randn(2, 5, 8, dtype=torch.float64)
    mixed = block.mixer(block.mixer_residual.before(x), SCOPE)
    fed = block.ffn(block.ffn_residual.before(x), SCOPE.queries).hidden
    torch.testing.assert_close(block(x, SCOPE).hidden, x + mixed + fed)


def test_a_config_says_which_parts() -> None:
    block = make(ffn=GatedConfig(hidden=6), norm=RMSNormConfig(), placement="post")
    assert isinstance(block.ffn, Gated)
    assert isinstance(block.mixer_residual.outside, RMSNorm)
    assert isinstance(block.mixer_residual.before, nn.Identity)
    assert isinstance(block.mixer_residual.after, nn.Identity)
    assert isinstance(make().mixer_residual.before, LayerNorm)
    assert isinstance(make().mixer_residual.outside, nn.Identity)
    assert isinstance(make().mixer_residual.dropout, Dropout)


@pytest.mark.parametrize("change", [(1, 3, 4), (1, 2, 1), (1, 2, 5), (2, 4)], ids=str)
def test_a_residual_says_both_shapes(change: tuple[int, ...]) -> None:
    """Also where only the length differs, and where adding would have spread a smaller thing over a larger (L0-56)."""
    x = torch.zeros(1, 2, 4)
    with pytest.raises(HeddleError) as caught:
        Residual("pre", nn.Identity).leave(x, x, torch.zeros(change))
    assert str(caught.value).endswith(f"its shape must be [1, 2, 4], not {list(change)}")
