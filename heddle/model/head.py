"""Heads: what hidden vectors become. Scores of the next token, of a class, or one vector for a whole sequence."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.model import (
    ClassifierHeadConfig,
    EmbeddingHeadConfig,
    LanguageHeadConfig,
    TransformerConfig,
)
from heddle.config.run import Way
from heddle.errors import HeddleError
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.dropout import Dropout
from heddle.nn.layout import Layout
from heddle.nn.norm import LayerNorm
from heddle.nn.numeric import capped, wide_dtype
from heddle.nn.setting import Setting

LOGITS_BYTES = 256 << 20  # fp32 logits that a loss makes at a time; fewer save little memory and cost time


class LanguageHead(nn.Module):
    """Scores of every token of the vocabulary: hidden @ Eᵀ (L0-73, L2-62).

    Args:
        rows: of the table, padding included.
        dim: D.
        vocab_size: number of real ids; entries beyond it are -inf (D-13).
        tied: the matrix is the token table's, and is given with each call.
        bias: whether scores have a bias (D-26).
        transform: a dense layer, `activation` and LayerNorm with `eps` first (BERT).
        scale: factor on the hidden vectors.
        cap: scores become cap · tanh(scores / cap), or None.
    """

    ways: tuple[Way, ...] = ()  # which of its products oneDNN computes in training

    def __init__(
        self,
        rows: int,
        dim: int,
        vocab_size: int,
        tied: bool = True,
        bias: bool = False,
        transform: bool = False,
        scale: float = 1.0,
        cap: float | None = None,
        activation: str = "gelu",
        eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.scale = scale
        self.cap = cap
        self.weight = None if tied else nn.Parameter(torch.empty(rows, dim))
        self.bias = nn.Parameter(torch.empty(rows)) if bias else None
        self.dense = nn.Linear(dim, dim) if transform else None
        self.norm = LayerNorm(dim, eps) if transform else None
        self.activation = ACTIVATIONS[activation]

    def features(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the table is multiplied with: the hidden vectors themselves, unless there is a transform or a scale (L2-61)."""
        if self.dense is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.dense(hidden)))
        return hidden if self.scale == 1.0 else hidden * self.scale

    def forward(self, hidden: Float[Tensor, "*rows D"], table: Float[Tensor, "V D"]) -> Float[Tensor, "*rows V"]:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        logits = self.product(self.features(hidden), table.to(hidden.dtype), bias)
        return mask_padding(capped(logits, self.cap), self.vocab_size)

    def product(self, x: Float[Tensor, "*rows D"], weight: Float[Tensor, "V D"], bias: Tensor | None) -> Tensor:
        """x weightᵀ + bias, the largest product of a decoding step."""
        return F.linear(x, weight, bias)


def mask_padding(logits: Float[Tensor, "*rows V"], vocab_size: int) -> Float[Tensor, "*rows V"]:
    """Logits with the table's extra entries at -inf, in training as in sampling (L0-86)."""
    if logits.shape[-1] == vocab_size:
        return logits
    extra = torch.arange(logits.shape[-1], device=logits.device) >= vocab_size
    return logits.masked_fill(extra, -torch.inf)


def pool(hidden: Float[Tensor, "B T D"], layout: Layout, how: str) -> Float[Tensor, "B D"]:
    """One vector per row, of its real tokens: the `first`, the `last`, their `mean` or their `max` (L1-93).

    A row of padding alone gives 0, as attention does.

    Raises:
        HeddleError: several texts are packed into one row, which would be mixed.
    """
    if layout.documents > 1:
        raise HeddleError("one vector for each row cannot tell packed texts apart: give each text a row of its own")
    real = layout.real
    empty = ~real.any(1, keepdim=True)
    if how in ("first", "last"):
        place = torch.arange(layout.width, device=hidden.device)
        far = layout.width if how == "first" else -1
        index = place.expand_as(real).where(real, far)
        index = (index.amin(1) if how == "first" else index.amax(1)).clamp(0, layout.width - 1)
        found = hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]
    elif how == "max":
        found = hidden.masked_fill(~real[..., None], -torch.inf).amax(1)
    else:
        wide = hidden.to(wide_dtype(hidden.dtype)).masked_fill(~real[..., None], 0.0)
        found = (wide.sum(1) / real.sum(1, keepdim=True).clamp(min=1)).to(hidden.dtype)
    return found.masked_fill(empty, 0.0)


class Pooler(nn.Module):
    """One vector per sequence: pooled, perhaps through tanh of a dense layer (BERT), perhaps of length 1."""

    def __init__(self, dim: int, how: str, dense: bool = False, normalise: bool = False) -> None:
        super().__init__()
        self.how = how
        self.dense = nn.Linear(dim, dim) if dense else None
        self.normalise = normalise

    def forward(self, hidden: Float[Tensor, "B T D"], layout: Layout) -> Float[Tensor, "B D"]:
        pooled = pool(hidden, layout, self.how)
        pooled = pooled if self.dense is None else torch.tanh(self.dense(pooled))
        return F.normalize(pooled, dim=-1) if self.normalise else pooled


class Classifier(nn.Module):
    """Scores of `classes` for each sequence: a linear map of its pooled vector."""

    def __init__(self, dim: int, classes: int, how: str, dense: bool, dropout: Dropout) -> None:
        super().__init__()
        self.pooler = Pooler(dim, how, dense)
        self.dropout = dropout
        self.scores = nn.Linear(dim, classes)

    def forward(self, hidden: Float[Tensor, "B T D"], layout: Layout) -> Float[Tensor, "B C"]:
        return self.scores(self.dropout(self.pooler(hidden, layout)))


def make_head(config: TransformerConfig) -> nn.Module | None:
    """The head a config describes; None for a bare model."""
    made: Any = config.head
    if isinstance(made, LanguageHeadConfig):
        sizes = (config.table_rows(), config.dim, config.vocab_size)
        return LanguageHead(
            *sizes, made.tied, made.bias, made.transform, made.scale, made.cap, made.activation, made.eps
        )
    if isinstance(made, ClassifierHeadConfig):
        dropout = Setting(config.dim, dropout=config.dropout).drop(made.dropout)
        return Classifier(config.dim, made.classes, made.pooling, made.dense, dropout)
    if isinstance(made, EmbeddingHeadConfig):
        return Pooler(config.dim, made.pooling, made.dense, made.normalise)
    return None
