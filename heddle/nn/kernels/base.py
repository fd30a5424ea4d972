"""What kernels have in common: the lowered mask, what a score is, and the masked softmax.

In every kernel a score is cap(q·k · scale) + bias, and then -inf where the mask blocks it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from heddle.config.kernels import Drops, Needs, refusal
from heddle.errors import HeddleError
from heddle.nn.dropout import Dropout
from heddle.nn.mask import Mask

Bias = Float[Tensor, "a H T S"]  # a is 1 where all rows share their positions, else B


@dataclass(frozen=True)
class Lowered:
    """A mask, and what is added to the scores, as a kernel wants them.

    Attributes:
        kernel: which kernel it was lowered for.
        mask: what was lowered; `blockwise` asks it tile by tile.
        causal: the lower triangle of a square, or a band below its diagonal; `allowed` is then not needed.
        window: how wide that band is; None: all of the triangle.
        allowed: Bool[b 1 T S], or None when it is not needed.
        dead: Bool[b 1 T 1], queries that see nothing at all and whose output is exactly 0 (D-10); None when there are none,
            or the kernel finds them by itself.
        bias: Float[a H T S], added to the scores before the mask (ALiBi, T5's buckets); None: nothing.
        blocks: the mask as FlexAttention wants it; None for other kernels, and when everything is seen.
    """

    kernel: Literal["reference", "blockwise", "plain", "sdpa", "flex"]
    mask: Mask
    causal: bool = False
    window: int | None = None
    allowed: Bool[Tensor, "b 1 T S"] | None = None
    dead: Bool[Tensor, "b 1 T 1"] | None = None
    bias: Bias | None = None
    blocks: BlockMask | None = None


def masked_softmax(
    scores: Float[Tensor, "*b T S"], allowed: Bool[Tensor, "..."], dead: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b T S"]:
    """Softmax over the allowed keys; blocked ones weigh exactly 0 (L0-92), and so does a row with no allowed key (D-10).

    Blocking is -inf before the softmax, by selection, never by multiplying (D-08, D-09). `dead` marks the rows without any
    allowed key; left out, they are found.
    """
    dead = ~allowed.any(-1, keepdim=True) if dead is None else dead
    # A dead row first sees everything and is then set to 0: softmax of -inf alone is nan, and nan survives into gradients.
    weights = scores.masked_fill(~(allowed | dead), -torch.inf).softmax(-1)
    return weights.masked_fill(dead, 0.0)


class Scoring(NamedTuple):
    """What a score is, apart from the tensors."""

    scale: float
    cap: float | None
    causal: bool
    window: int | None
    kv_heads: int
    block: int

    def spans(self, queries: int, keys: int) -> list[tuple[int, int, int, int]]:
        """Blocks of query rows as (start, stop, first, last): the rows, and the keys that any of them can see."""
        spans = []
        for start in range(0, queries, self.block):
            stop = min(start + self.block, queries)
            first = 0 if self.window is None else max(0, start - self.window + 1)
            spans.append((start, stop, first, stop if self.causal else keys))
        return spans


def dead_queries(mask: Mask, allowed: Tensor | None) -> Tensor | None:
    """Queries that see nothing; None when the form says that there are none."""
    # Every rule lets a position see itself, so a query sees something wherever its own position is among the keys.
    among = mask.queries.form == "uniform" or (mask.queries.form == "plain" and mask.queries.width <= mask.keys.width)
    if among and mask.keys.form == "plain":
        return None
    if allowed is None:
        return (~mask.queries.real)[:, None, :, None]
    return ~allowed.any(-1, keepdim=True)


class Kernel(nn.Module, ABC):
    """softmax(cap(q kᵀ · scale) + bias) v under a lowered mask; query head h reads key head h // (H/K).

    Args:
        scale: factor on q kᵀ.
        dropout: on the attention weights; a rate, or how it is done.
        cap: the scores' bound, see `capped`; None: none.
    """

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)
        self.cap = cap

    @staticmethod
    @abstractmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        """What this kernel needs of the mask and the bias; called once per forward pass and attention pattern."""

    @abstractmethod
    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        """The weighted averages of the values."""

    def check_needs(self, name: str) -> None:
        """Refuse a cap, or dropout that is at work, where this kernel cannot do it (`heddle.config.kernels`).

        Raises:
            HeddleError: that, with what to do.
        """
        drops: Drops = "none"
        if self.dropout.active:
            drops = "inverted" if self.dropout.plain else "any"
        if (why := refusal(name, Needs(self.cap is not None, drops))) is not None:
            raise HeddleError(why)
