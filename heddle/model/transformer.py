"""The transformer: tokens to hidden vectors, hidden vectors to logits. Training, prefill and decoding are the same call."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.model.stack import Stack
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal
from heddle.nn.state import Cache, Growing, State


class Transformer(nn.Module):
    """A decoder-only transformer: token table, causal stack, head (L0-09).

    `forward` gives hidden vectors and `logits` applies the head, separately: a loss takes the head chunk by chunk, decoding
    takes it at the last position only.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.longest = config.context if config.decoder.entry.positions == "learned" else None
        self.embedding = Embedding(config.table_rows(), config.dim)
        self.decoder = Stack(config.decoder, config.dim, config.context, Causal())
        self.head = None if config.head.tied else Embedding(config.table_rows(), config.dim)

    def forward(self, tokens: Int[Tensor, "B T"], layout: Layout | None = None) -> Float[Tensor, "B T D"]:
        """Hidden vectors after every prefix, in one pass (L0-01). The layout defaults to whole sequences."""
        return self.decode(
            tokens, Layout.plain(tokens.shape[0], tokens.shape[1], tokens.device) if layout is None else layout
        )

    def decode(
        self,
        tokens: Int[Tensor, "B T"],
        queries: Layout,
        keys: Layout | None = None,
        states: Sequence[State] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden vectors of `tokens`, standing where `queries` says and seeing `keys`, with what `states` remember.

        Raises:
            HeddleError: more tokens than there are learned positions.
        """
        self.check_length(tokens.shape[1])
        return self.decoder(self.embedding(tokens).to(self.working_dtype()), queries, keys, states)

    def step(
        self, tokens: Int[Tensor, "B T"], cache: Cache, counts: Sequence[int] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Hidden vectors of the next tokens of every row of a cache, which remembers them.

        Of row b's T tokens the first `counts[b]` are real (all, if left out); the rest is padding.
        """
        counts = [tokens.shape[1]] * tokens.shape[0] if counts is None else counts
        self.check_length(max(length + count for length, count in zip(cache.lengths, counts, strict=True)))
        queries, keys = cache.advance(counts, tokens.device)
        return self.decode(tokens, queries, keys, cache.states)

    def new_cache(self, rows: int) -> Cache:
        """An empty cache for `rows` sequences; it grows as tokens come."""
        return Cache([Growing() for _ in self.decoder.blocks], rows)

    def logits(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Scores of the next token, hidden @ Eᵀ (L0-73, L2-62). Entries beyond the vocabulary are -inf (D-13)."""
        return mask_padding(F.linear(hidden, self.head_weight().to(hidden.dtype)), self.vocab_size)

    def head_weight(self) -> Float[Tensor, "V D"]:
        """The head's matrix: the token table itself when tied (L0-75)."""
        return self.embedding.weight if self.head is None else self.head.weight

    def check_length(self, length: int) -> None:
        """Refuse what learned positions cannot place."""
        if self.longest is not None and length > self.longest:
            raise HeddleError(
                f"{length} tokens are more than the {self.longest} positions this model has learned; "
                "shorten the text or let it be windowed"
            )

    def working_dtype(self) -> torch.dtype:
        """What the blocks compute in: the dtype of their matrices. Tables and norms may be kept wider."""
        return next(module.weight.dtype for module in self.decoder.modules() if isinstance(module, nn.Linear))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device


class Embedding(nn.Module):
    """A table with one row per token (L0-14), looked up by ids from 0 (D-23)."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(tokens, self.weight)


def mask_padding(logits: Float[Tensor, "*rows V"], vocab_size: int) -> Float[Tensor, "*rows V"]:
    """Logits with the table's extra entries at -inf, in training as in sampling (L0-86)."""
    if logits.shape[-1] == vocab_size:
        return logits
    extra = torch.arange(logits.shape[-1], device=logits.device) >= vocab_size
    return logits.masked_fill(extra, -torch.inf)
