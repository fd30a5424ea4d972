"""torch's own kernels: one call each."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from heddle.nn.dropout import Dropout
from heddle.nn.kernels.base import Bias, Kernel, Lowered, dead_queries
from heddle.nn.kernels.blockwise import Blockwise
from heddle.nn.mask import Mask
from heddle.nn.numeric import capped, wide_dtype


class SDPA(Kernel):
    """torch's `scaled_dot_product_attention`: memory linear in the length where the mask is none or the triangle alone.

    Anything else, a window, packed rows, a bias, is handed to it as a whole T×S mask.

    Raises:
        HeddleError: in `forward`, there is a cap, or dropout of another kind than torch's.
    """

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        if mask.is_open():
            return Lowered("sdpa", mask, bias=bias)
        causal = mask.is_causal() and bias is None
        allowed = None if causal else mask.dense()
        dead = dead_queries(mask, allowed)
        if allowed is not None and dead is not None:
            # What a row without keys gives differs between torch's backends: see everything, then 0.
            allowed = allowed | dead
        if bias is not None and allowed is not None:  # torch takes one tensor for both
            return Lowered("sdpa", mask, dead=dead, bias=bias.masked_fill(~allowed, -torch.inf))
        return Lowered("sdpa", mask, causal, None, allowed, dead)

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        self.check_needs("sdpa")
        # A bias of 20 has steps of 0.1 in bf16. On CPU torch adds it as it is; elsewhere it wants one precision for all.
        precision = wide_dtype(q.dtype) if q.device.type == "cpu" else q.dtype
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=lowered.allowed if lowered.bias is None else lowered.bias.to(precision),
            dropout_p=self.dropout.rate if self.dropout.active else 0.0,
            is_causal=lowered.causal,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out if lowered.dead is None else out.masked_fill(lowered.dead, 0.0)


class Flex(Kernel):
    """torch's FlexAttention: one fused kernel for any mask, cap and bias, made by torch.compile (Dong et al. 2024).

    Outside of torch.compile torch would write out all scores, and on CPU it has no gradient; there `blockwise` does the work.

    Raises:
        HeddleError: in `forward`, when dropout is at work.
    """

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__(scale, dropout, cap)
        self.blockwise = Blockwise(scale, 0.0, cap)

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        blocks = None if mask.is_open() else mask.blocks()
        window = mask.window()
        causal = mask.is_causal() or window is not None
        return Lowered("flex", mask, causal, window, bias=bias, blocks=blocks)

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        self.check_needs("flex")
        learns = q.requires_grad or k.requires_grad or v.requires_grad
        if not torch.compiler.is_compiling() or (learns and q.device.type in ("cpu", "mps")):
            return self.blockwise(q, k, v, lowered)
        cap, bias = self.cap, lowered.bias

        def score(scores: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            scores = capped(scores, cap)
            if bias is None:
                return scores
            return scores + (bias[0, head, query, key] if bias.shape[0] == 1 else bias[row, head, query, key])

        changed = None if cap is None and bias is None else score
        out = flex_attention(q, k, v, changed, lowered.blocks, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1])
        assert isinstance(out, Tensor)
        return out
