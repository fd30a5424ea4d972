"""Heads: from hidden vectors to scores of the next token, scores of classes, or one vector per sequence."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, TransformerConfig
from heddle.config.train import ProductKind
from heddle.errors import HeddleError
from heddle.model.pooling import pool
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.dropout import Dropout
from heddle.nn.layout import Layout
from heddle.nn.norm import LayerNorm
from heddle.nn.numeric import capped
from heddle.nn.setting import Setting

LOGITS_BYTES = 256 << 20  # fp32 logits that a loss holds at once; fewer save little memory and cost time


@dataclass(frozen=True, eq=False)
class Scores:
    """How features become scores: `capped(features @ tableᵀ + bias)`.

    Attributes:
        table: Float[V D], one row per id or class.
        vocab_size: number of real rows; later rows of the table are padding and have no probability.
        bias: Float[V], or None.
        cap: scores are cap · tanh(scores / cap), or None.
        by_onednn: which of the products oneDNN computes in training (see `heddle.model.products`).
    """

    table: Float[Tensor, "V D"]
    vocab_size: int
    bias: Float[Tensor, " V"] | None = None
    cap: float | None = None
    by_onednn: tuple[ProductKind, ...] = ()

    def to(self, dtype: torch.dtype) -> "Scores":
        """The same, with table and bias in another dtype."""
        bias = None if self.bias is None else self.bias.to(dtype)
        return Scores(self.table.to(dtype), self.vocab_size, bias, self.cap, self.by_onednn)

    def finish(self, products: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
        """Scores from `features @ tableᵀ + bias`; padding entries are -inf, in training as in sampling (L0-86)."""
        scores = capped(products, self.cap)
        if scores.shape[-1] == self.vocab_size:
            return scores
        extra = torch.arange(scores.shape[-1], device=scores.device) >= self.vocab_size
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
        raise HeddleError(f"a {type(self).__name__} head returns vectors, not scores, so it cannot predict")

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


class Pooler(Head):
    """One vector per sequence: pooled, optionally passed through a dense layer and an activation (tanh in BERT)."""

    def __init__(self, dim: int, how: str, dense: bool = False, activation: str = "tanh") -> None:
        super().__init__()
        self.how, self.activation = how, ACTIVATIONS[activation]
        self.dense = nn.Linear(dim, dim) if dense else None

    def features(self, hidden: Float[Tensor, "B T D"], layout: Layout | None) -> Float[Tensor, "B *some D"]:
        """One vector per sequence, or per token if nothing is pooled; without a layout, every row is one whole sequence."""
        layout = Layout.whole(hidden.shape[0], hidden.shape[1], hidden.device) if layout is None else layout
        pooled = hidden if self.how == "none" else pool(hidden, layout, self.how)
        return pooled if self.dense is None else self.activation(self.dense(pooled))


class TextVector(Head):
    """One vector per sequence: pooled, perhaps in several ways, passed through dense layers, perhaps of length 1.

    Args:
        config: the poolings, the dense layers, and whether the vector gets length 1.
        dim: D.
    """

    def __init__(self, config: EmbeddingHeadConfig, dim: int) -> None:
        super().__init__()
        self.poolings, self.normalise = config.poolings(), config.normalise
        widths = config.widths(dim)
        self.dense = nn.ModuleList(map(Dense, config.dense, widths, widths[1:]))

    def features(self, hidden: Float[Tensor, "B T D"], layout: Layout | None, skip: int = 0) -> Float[Tensor, "B E"]:
        """One vector per sequence; without a layout, every row is one whole sequence.

        Args:
            skip: how many tokens at the start of each sequence are not pooled.
        """
        layout = Layout.whole(hidden.shape[0], hidden.shape[1], hidden.device) if layout is None else layout
        vector = torch.cat([pool(hidden, layout, how, skip) for how in self.poolings], dim=-1)
        for dense in self.dense:
            vector = dense(vector)
        return F.normalize(vector, dim=-1) if self.normalise else vector

    def forward(self, hidden: Float[Tensor, "B T D"], layout: Layout | None, table: Tensor) -> Float[Tensor, "B E"]:
        return self.features(hidden, layout)


class Dense(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, config: DenseConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B E"]:
        return self.activation(self.linear(x))


class Classifier(Head):
    """Scores of `classes` for each sequence, or for each token: a linear map of its vector."""

    def __init__(self, config: ClassifierHeadConfig, dim: int, dropout: Dropout) -> None:
        super().__init__()
        self.pooler = Pooler(dim, config.pooling, config.dense, activation=config.activation)
        self.dropout = dropout
        self.scores = nn.Linear(dim, config.classes)

    def features(self, hidden: Float[Tensor, "B T D"], layout: Layout | None) -> Float[Tensor, "B *some D"]:
        """The vectors to score, with dropout."""
        return self.dropout(self.pooler.features(hidden, layout))

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """Scores by the classifier's linear map."""
        return Scores(self.scores.weight, self.scores.out_features, self.scores.bias)


def make_head(config: TransformerConfig) -> Head | None:
    """Build the head that a config describes; None for a bare model."""
    made: Any = config.head
    if isinstance(made, LanguageHeadConfig):
        return LanguageHead(made, config.table_rows(), config.dim, config.head_width(), config.vocab_size)
    if isinstance(made, ClassifierHeadConfig):
        dropout = Setting(config.dim, dropout=config.dropout).drop(made.dropout)
        return Classifier(made, config.dim, dropout)
    if isinstance(made, EmbeddingHeadConfig):
        return TextVector(made, config.dim)
    return None
