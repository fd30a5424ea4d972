"""Laws compare heddle with itself and are blind to a convention that is wrong everywhere. These compare it with torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heddle.nn import KERNELS, Causal, Everything, LayerNorm, Layout, Mask, RMSNorm
from tests.laws import laws

RULES = pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)


@RULES
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_is_torchs(rule: Causal | Everything, kernel: str) -> None:
    laws.attention_is_torchs(rule, kernel)


@RULES
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.lecture("L2-34")
def test_a_block_is_torchs(rule: Causal | Everything, placement: str, activation: str) -> None:
    laws.block_is_torchs(placement, activation, rule)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.lecture("L2-34", "L1-78", "D-46")
def test_a_block_that_looks_across_is_torchs(placement: str, activation: str) -> None:
    laws.cross_block_is_torchs(placement, activation)


@RULES
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_kernels_are_torchs(rule: Causal | Everything, kernel: str, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, 6, 8, generator=generator, dtype=torch.float64) for heads in (4, kv_heads, kv_heads)
    )
    layout = Layout.plain(2, 6)
    module = KERNELS[kernel](8**-0.5)
    copied = [tensor.repeat_interleave(4 // kv_heads, dim=1) for tensor in (k, v)]
    theirs = F.scaled_dot_product_attention(q, *copied, is_causal=rule == Causal())
    laws.close(module(q, k, v, module.lower(Mask(rule, layout, layout))), theirs)


@DTYPES
@pytest.mark.lecture("L1-11")
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_torchs(dtype: torch.dtype, tolerance: float, bias: bool) -> None:
    theirs = nn.LayerNorm(24, bias=bias, dtype=dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = LayerNorm(24, bias=bias).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 24, dtype=dtype) * 4 + 1
    laws.close(ours(x), theirs(x), tolerance)


@DTYPES
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_rms_norm_is_torchs(dtype: torch.dtype, tolerance: float, eps: float) -> None:
    ours = RMSNorm(24, eps).to(dtype)
    nn.init.normal_(ours.weight)
    x = torch.randn(3, 5, 24, dtype=dtype) * 4 + 1
    laws.close(ours(x), F.rms_norm(x, (24,), ours.weight, eps), 4 * tolerance)
