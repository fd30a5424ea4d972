"""What kernels share: the lowered mask and the definition of a score.

In every kernel a score is cap(q·k · scale) + bias, or -inf where the mask blocks it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from heddle.config.kernels import Drops, Needs, refusal
from heddle.errors import HeddleError
from heddle.nn.dropout import Dropout
from heddle.nn.mask import Mask

ScoreFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
Bias = Float[Tensor, "a H T S"]  # a is 1 if all rows share their positions, else B


@dataclass(frozen=True)
class Lowered:
    """A mask and a bias in the form that a kernel takes.

    Attributes:
        kernel: the kernel that the mask was lowered for.
        mask: the mask before lowering; `blockwise` evaluates it tile by tile.
        causal: the mask is the lower triangle of a square, or a band below its diagonal, so `allowed` is not needed.
        window: width of that band; None: the whole triangle.
        allowed: Bool[b 1 T S], or None if not needed.
        dead: Bool[b 1 T 1], queries that see no key and whose output is exactly 0 (D-10); None if there are none, or if the
            kernel finds them.
        bias: Float[a H T S], added to the scores before the mask (ALiBi, T5's buckets), or None.
        custom_scores: a layer's function of its scores and the positions of queries and keys, or None.
        sinks: Float[H], a learned score for each head, which joins every softmax, or None.
        blocks: the mask for FlexAttention; None for other kernels, outside torch.compile, and if every query sees every key.
    """

    kernel: Literal["reference", "blockwise", "plain", "sdpa", "flex"]
    mask: Mask
    causal: bool = False
    window: int | None = None
    allowed: Bool[Tensor, "b 1 T S"] | None = None
    dead: Bool[Tensor, "b 1 T 1"] | None = None
    bias: Bias | None = None
    custom_scores: ScoreFunction | None = None
    sinks: Float[Tensor, " H"] | None = None
    blocks: BlockMask | None = None


class Scoring(NamedTuple):
    """The definition of a score, apart from the tensors."""

    scale: float
    cap: float | None
    causal: bool
    window: int | None
    kv_heads: int
    block: int

    def spans(self, queries: int, keys: int) -> list[tuple[int, int, int, int]]:
        """Blocks of query rows as (start, stop, first, last): rows start … stop - 1 see keys first … last - 1 at most."""
        spans = []
        for start in range(0, max(queries, 1), self.block):
            stop = min(start + self.block, queries)
            first = 0 if self.window is None else max(0, start - self.window + 1)
            spans.append((start, stop, first, stop if self.causal else keys))
        return spans


def dead_queries(mask: Mask, allowed: Tensor | None) -> Tensor | None:
    """Queries that see no key; None if the form rules them out."""
    # Every rule lets a position see itself, so a query whose position is among the keys sees at least one.
    later = mask.queries.form in ("uniform", "newest") or (mask.queries.form == "ragged" and mask.queries.unpadded)
    among = later or (mask.queries.form == "whole" and mask.queries.width <= mask.keys.width)
    if among and mask.keys.form == "whole":
        return None
    if allowed is None:
        return (~mask.queries.real)[:, None, :, None]
    return ~allowed.any(-1, keepdim=True)


class Kernel(nn.Module, ABC):
    """softmax(cap(q kᵀ · scale) + bias) v under a lowered mask, with a layer's sinks; query head h reads key head h // (H/K).

    Args:
        scale: factor on q kᵀ.
        dropout: of the attention weights; a rate, or a `Dropout`.
        cap: bound of the scores, see `capped`; None: no bound.
    """

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)
        self.cap = cap

    @staticmethod
    @abstractmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        """Convert the mask and the bias to the form that this kernel takes. Called once per forward pass and pattern."""

    def forward(
        self, q: Float[Tensor, "R H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "R H T e"]:
        """The weighted averages of the values, [R H T e].

        R is B or, where neighbouring rows read the same keys (`Cache.share`), a multiple of it: then such rows are one row with
        more queries, so that their keys are read once.
        """
        rows = k.shape[0]
        if q.shape[0] == rows:
            return self.attend(q, k, v, lowered)
        together = q.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)
        out = self.attend(together, k, v, lowered)
        return out.unflatten(2, (-1, q.shape[2])).transpose(1, 2).flatten(0, 1)

    @abstractmethod
    def attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        """The weighted averages of the values, [B H T e], where each row has its own keys."""

    def check_needs(self, name: str, lowered: Lowered) -> None:
        """Refuse a cap, active dropout, or a layer's own scores or sinks, that this kernel lacks (`heddle.config.kernels`).

        Raises:
            HeddleError: it does not; the message says what to set instead.
        """
        drops: Drops = "none"
        if self.dropout.active:
            drops = "inverted" if self.dropout.standard else "any"
        needs = Needs(self.cap is not None, drops, lowered.custom_scores is not None, lowered.sinks is not None)
        if (why := refusal(name, needs)) is not None:
            raise HeddleError(why)
