"""Heads that pool: a vector per text, or scores of classes; and `make_head`, which builds the head of a config."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, TransformerConfig
from heddle.model.head import Head, LanguageHead, Scores
from heddle.model.pooling import pool
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.dropout import Dropout
from heddle.nn.layout import Layout
from heddle.nn.setting import Setting


class Pooler(Head):
    """One vector per sequence: pooled, optionally passed through a dense layer and an activation (tanh in BERT)."""

    def __init__(self, dim: int, pooling: str, dense: bool = False, activation: str = "tanh") -> None:
        super().__init__()
        self.pooling, self.activation = pooling, ACTIVATIONS[activation]
        self.dense = nn.Linear(dim, dim) if dense else None

    def features(self, hidden: Float[Tensor, "B T D"], layout: Layout | None) -> Float[Tensor, "B *some D"]:
        """One vector per sequence, or per token if nothing is pooled; without a layout, every row is one sequence."""
        layout = Layout.whole(hidden.shape[0], hidden.shape[1], hidden.device) if layout is None else layout
        pooled = hidden if self.pooling == "none" else pool(hidden, layout, self.pooling)
        return pooled if self.dense is None else self.activation(self.dense(pooled))


class TextVector(Head):
    """One vector per sequence: one or several poolings, dense layers, and optional normalisation to length 1.

    Args:
        config: the poolings, the dense layers, and whether to normalise.
        dim: D.
    """

    def __init__(self, config: EmbeddingHeadConfig, dim: int) -> None:
        super().__init__()
        self.poolings, self.normalise = config.poolings(), config.normalise
        widths = config.widths(dim)
        self.dense = nn.ModuleList(map(Dense, config.dense, widths, widths[1:]))

    def features(self, hidden: Float[Tensor, "B T D"], layout: Layout | None, skip: int = 0) -> Float[Tensor, "B E"]:
        """One vector per sequence; without a layout, every row is one sequence.

        Args:
            skip: number of tokens at the start of each sequence to leave out.
        """
        layout = Layout.whole(hidden.shape[0], hidden.shape[1], hidden.device) if layout is None else layout
        vector = torch.cat([pool(hidden, layout, pooling, skip) for pooling in self.poolings], dim=-1)
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
    head: Any = config.head
    if isinstance(head, LanguageHeadConfig):
        return LanguageHead(head, config.table_rows(), config.dim, config.head_width(), config.vocab_size)
    if isinstance(head, ClassifierHeadConfig):
        dropout = Setting(config.dim, dropout=config.dropout).drop(head.dropout)
        return Classifier(head, config.dim, dropout)
    if isinstance(head, EmbeddingHeadConfig):
        return TextVector(head, config.dim)
    return None
