"""Laws compare heddle with itself and are blind to a convention that is wrong everywhere. These compare it with torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heddle.config import AttentionConfig, BlockConfig, LayerNormConfig, MLPConfig
from heddle.nn import KERNELS, Attention, Block, Causal, Everything, LayerNorm, Layout, Pattern, RMSNorm, Setting
from tests.laws.laws import close

RULES = pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)


def load_torchs_attention(ours: nn.Module, reference: nn.MultiheadAttention) -> None:
    """Torch keeps queries, keys and values in one matrix."""
    for letter, weight, bias in zip(
        "qkv", reference.in_proj_weight.chunk(3), reference.in_proj_bias.chunk(3), strict=True
    ):
        getattr(ours, letter).load_state_dict({"weight": weight, "bias": bias})
    ours.o.load_state_dict(reference.out_proj.state_dict())


@RULES
@pytest.mark.parametrize("kernel", KERNELS)
@torch.no_grad()
def test_attention_is_torchs(rule: Causal | Everything, kernel: str) -> None:
    """The same numbers as `torch.nn.MultiheadAttention`, with its weights."""
    dim, heads = 12, 3
    reference = torch.nn.MultiheadAttention(dim, heads, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(reference.in_proj_bias)
    torch.nn.init.normal_(reference.out_proj.bias)
    ours = Attention(AttentionConfig(heads=heads, kernel=kernel), Setting(dim)).double()
    load_torchs_attention(ours, reference)
    x = torch.randn(2, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    layout = Layout.whole(2, 5)
    actual = ours(x, Pattern(rule, kernel=kernel).scope(layout, layout))
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril() if rule == Causal() else None
    close(actual, reference(x, x, x, attn_mask=blocked, need_weights=False)[0], what="torch.nn.MultiheadAttention")


@RULES
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.lecture("L2-34")
@torch.no_grad()
def test_a_block_is_torchs(rule: Causal | Everything, placement: str, activation: str) -> None:
    """The same numbers as `torch.nn.TransformerEncoderLayer`, with its weights and `norm_first` as the placement says."""
    dim, heads, hidden = 12, 3, 20
    reference = torch.nn.TransformerEncoderLayer(
        dim, heads, hidden, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    for parameter in reference.parameters():  # training mode, so that torch takes no fused path; nothing is dropped
        torch.nn.init.normal_(parameter, std=0.4)
    config = BlockConfig(
        mixer=AttentionConfig(heads=heads, kernel="reference"),
        ffn=MLPConfig.of({"hidden": hidden, "activation": activation}),
        norm=LayerNormConfig(),
        placement=placement,
    )
    ours = Block(config, Setting(dim)).double()
    load_torchs_attention(ours.mixer, reference.self_attn)
    ours.ffn.up.load_state_dict(reference.linear1.state_dict())
    ours.ffn.down.load_state_dict(reference.linear2.state_dict())
    for residual, norm in ((ours.mixer_residual, reference.norm1), (ours.ffn_residual, reference.norm2)):
        (residual.before if placement == "pre" else residual.outside).load_state_dict(norm.state_dict())
    x = torch.randn(2, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    layout = Layout.whole(2, 5)
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril() if rule == Causal() else None
    actual = ours(x, Pattern(rule, kernel="reference").scope(layout, layout)).hidden
    close(actual, reference(x, src_mask=blocked), what="torch's layer")


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.lecture("L2-34", "L1-78", "D-46")
@torch.no_grad()
def test_a_block_that_looks_across_is_torchs(placement: str, activation: str) -> None:
    """The same numbers as `torch.nn.TransformerDecoderLayer`: causal in the target, all of the source in sight."""
    dim, heads, hidden = 12, 3, 20
    reference = torch.nn.TransformerDecoderLayer(
        dim, heads, hidden, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    attention = AttentionConfig(heads=heads, kernel="reference")
    ffn = MLPConfig.of({"hidden": hidden, "activation": activation})
    config = BlockConfig(mixer=attention, cross=attention, ffn=ffn, placement=placement)
    ours = Block(config, Setting(dim)).double()
    load_torchs_attention(ours.mixer, reference.self_attn)
    load_torchs_attention(ours.cross, reference.multihead_attn)
    ours.ffn.up.load_state_dict(reference.linear1.state_dict())
    ours.ffn.down.load_state_dict(reference.linear2.state_dict())
    residuals = (ours.mixer_residual, ours.cross_residual, ours.ffn_residual)
    for residual, norm in zip(residuals, (reference.norm1, reference.norm2, reference.norm3), strict=True):
        (residual.before if placement == "pre" else residual.outside).load_state_dict(norm.state_dict())
    generator = torch.Generator().manual_seed(8)
    x, memory = (torch.randn(2, length, dim, dtype=torch.float64, generator=generator) for length in (5, 7))
    target, source = Layout.whole(2, 5), Layout.whole(2, 7)
    across = Pattern(Everything(), kernel="reference").scope(target, source, source=memory)
    actual = ours(x, Pattern(Causal(), kernel="reference").scope(target, target), source=across).hidden
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril()
    close(actual, reference(x, memory, tgt_mask=blocked), what="torch's layer")


@DTYPES
@pytest.mark.lecture("L1-11")
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_torchs(dtype: torch.dtype, tolerance: float, bias: bool) -> None:
    reference = nn.LayerNorm(24, bias=bias, dtype=dtype)
    for parameter in reference.parameters():
        nn.init.normal_(parameter)
    ours = LayerNorm(24, bias=bias).to(dtype)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(3, 5, 24, dtype=dtype) * 4 + 1
    close(ours(x), reference(x), tolerance)


@DTYPES
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_rms_norm_is_torchs(dtype: torch.dtype, tolerance: float, eps: float) -> None:
    ours = RMSNorm(24, eps).to(dtype)
    nn.init.normal_(ours.weight)
    x = torch.randn(3, 5, 24, dtype=dtype) * 4 + 1
    close(ours(x), F.rms_norm(x, (24,), ours.weight, eps), 4 * tolerance)
