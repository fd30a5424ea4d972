"""Heads: from hidden vectors to scores of the next token, scores of classes, or one vector per sequence."""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.model import LanguageHeadConfig
from heddle.config.train import ProductKind
from heddle.errors import HeddleError, article
from heddle.model.rows import Rows
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.layout import Layout
from heddle.nn.norm import LayerNorm
from heddle.nn.numeric import capped


@dataclass(frozen=True, eq=False)
class Scores:
    """How features become scores: `capped(features @ tableᵀ + bias)`.

    Attributes:
        table: Float[V D], one row per id or class; if processes divide the rows, this one's.
        vocab_size: number of real rows of all; later rows of the table are padding and have no probability.
        bias: Float[V], or None.
        cap: scores are cap · tanh(scores / cap), or None.
        by_onednn: which of the products oneDNN computes in training (see `heddle.model.products`).
        rows: which of a divided table these are; None: all.
    """

    table: Float[Tensor, "V D"]
    vocab_size: int
    bias: Float[Tensor, " V"] | None = None
    cap: float | None = None
    by_onednn: tuple[ProductKind, ...] = ()
    rows: Rows | None = None

    @property
    def real(self) -> int:
        """Number of real rows of `table`."""
        return self.vocab_size if self.rows is None else self.rows.real

    def to(self, dtype: torch.dtype) -> "Scores":
        """A copy with table and bias in another dtype."""
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, table=self.table.to(dtype), bias=bias)

    def finish(self, products: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows V"]:
        """Scores of all rows from `features @ tableᵀ + bias`; padding entries are -inf, in training as in sampling (L0-86)."""
        scores = self.own(products)
        return scores if self.rows is None else self.rows.join(scores)

    def own(self, products: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows P"]:
        """The same for the rows of `table`."""
        scores = capped(products, self.cap)
        if scores.shape[-1] == self.real:
            return scores
        extra = torch.arange(scores.shape[-1], device=scores.device) >= self.real
        return scores.masked_fill(extra, -torch.inf)


class Head(nn.Module):
    """From hidden vectors to a model's output. Every head is called as `head(hidden, layout, table)`.

    A loss calls `features` and `scoring` instead, so that it can compute the scores chunk by chunk.
    """

    def features(self, hidden: Float[Tensor, "*rows D"], layout: Layout | None) -> Float[Tensor, "*some D"]:
        """The vectors to score, one per token or one per sequence.

        Args:
            hidden: Float[B T D]; a head that scores tokens takes any shape [… D].
            layout: layout of the tokens. A head that scores tokens does not use it.
        """
        raise NotImplementedError

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """How features become scores.

        Args:
            table: the model's token table, used by a tied head.

        Raises:
            HeddleError: this head returns vectors, not scores.
        """
        raise HeddleError(f"{article(type(self).__name__)} head returns vectors, not scores, so it cannot predict")

    def forward(
        self, hidden: Float[Tensor, "*rows D"], layout: Layout | None, table: Tensor
    ) -> Float[Tensor, "*some V"]:
        features = self.features(hidden, layout)
        scores = self.scoring(table).to(features.dtype)
        return scores.finish(self.product(features, scores.table, scores.bias))

    def product(self, x: Float[Tensor, "*rows D"], weight: Float[Tensor, "V D"], bias: Tensor | None) -> Tensor:
        """x weightᵀ + bias, the largest product of a decoding step."""
        return F.linear(x, weight, bias)


class LanguageHead(Head):
    """Scores of every token of the vocabulary: hidden @ Eᵀ (L0-73, L2-62).

    Args:
        config: transform, scale, bias and cap.
        rows: rows of the table, padding included.
        dim: D.
        width: E, the width of the vectors that are scored.
        vocab_size: number of real ids; later entries are padding and score -inf (D-13).
    """

    by_onednn: tuple[ProductKind, ...] = ()  # which of its products oneDNN computes in training

    def __init__(self, config: LanguageHeadConfig, rows: int, dim: int, width: int, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.scale, self.cap = vocab_size, config.scale, config.cap
        bound = 1 / sqrt(width)
        self.weight = None if config.tied else nn.Parameter(nn.init.uniform_(torch.empty(rows, width), -bound, bound))
        self.bias = nn.Parameter(torch.zeros(rows)) if config.bias else None
        self.dense = nn.Linear(dim, width, config.transform_bias) if config.transform else None
        self.norm = LayerNorm(width, config.eps, config.transform_bias) if config.transform else None
        self.activation = ACTIVATIONS[config.activation]

    def features(self, hidden: Float[Tensor, "*rows D"], layout: Layout | None = None) -> Float[Tensor, "*rows E"]:
        """The hidden vectors, transformed and scaled if so configured (L2-61)."""
        if self.dense is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.dense(hidden)))
        return hidden if self.scale == 1.0 else hidden * self.scale

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """Scores by the head's own table, or by the token table if tied (L0-75)."""
        table = table if self.weight is None else self.weight
        return Scores(table, self.vocab_size, self.bias, self.cap, self.by_onednn)
