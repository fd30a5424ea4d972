"""The transformer: tokens to hidden vectors, hidden vectors to logits. Training, prefill and decoding are the same call."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import at_least, checked, wrong
from heddle.config.model import StackConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model.head import LanguageHead, make_head
from heddle.model.stack import Stack
from heddle.nn.block import MATRICES
from heddle.nn.custom import without_custom
from heddle.nn.embedding import Embedding, check_ids
from heddle.nn.layout import Layout
from heddle.nn.moe import Routing
from heddle.nn.state import Cache, Keys, Memory


class Transformer(nn.Module):
    """A transformer: token tables, an encoder, a decoder or both, and a head (L0-09, L1-76 … L1-83, L3-04 … L3-06).

    `forward` gives hidden vectors and the head is applied apart from it: a loss takes the language head chunk by chunk,
    decoding takes it at the last position only.
    """

    @checked()
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        width = config.last()[1].entry.token_dim(config.dim)
        self.embedding = Embedding(config.table_rows(), width)
        self.source_embedding = None
        if config.source_vocab_size is not None and config.encoder is not None:
            self.source_embedding = Embedding(config.source_rows(), config.encoder.entry.token_dim(config.dim))

        def stack(part: StackConfig | None, causal: bool) -> Stack | None:
            return None if part is None else Stack(part, config.dim, config.context, causal, config.dropout)

        self.encoder = stack(config.encoder, causal=False)
        self.decoder = stack(config.decoder, causal=True)
        self.head = make_head(config)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        layout: Layout | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_layout: Layout | None = None,
        types: Int[Tensor, "B T"] | None = None,
        source_types: Int[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden vectors of `tokens`, in one pass (L0-01). Layouts default to whole sequences.

        A decoder's hold what follows every prefix; an encoder's see the whole. `source` is what an encoder-decoder's encoder
        reads, `types` and `source_types` the tokens' and the source's types where there are any (else all are of type 0).

        Raises:
            HeddleError: something is given that this model has no use for, or a source is missing; shapes do not fit; there
                are more tokens than learned positions.
        """
        return self.run(tokens, layout, source, source_layout, types, source_types)[0]

    def run(
        self,
        tokens: Int[Tensor, "B T"],
        layout: Layout | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_layout: Layout | None = None,
        types: Int[Tensor, "B T"] | None = None,
        source_types: Int[Tensor, "B S"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], tuple[Routing, ...]]:
        """`forward`, and beside it what the routers did: their loads, and the terms they add to the loss."""
        check_ids("tokens", tokens, self.vocab_size)
        layout = _whole(tokens) if layout is None else layout
        if self.encoder is None or self.decoder is None:
            if not (source is None and source_layout is None and source_types is None):
                raise HeddleError("this model reads tokens alone: leave out source, source_layout and source_types")
            alone = self._encode if self.decoder is None else self._decode
            return alone(tokens, layout, types=types)
        if source is None:
            raise HeddleError("this model reads a source beside the tokens; give source")
        check_ids("source", source, self._source_size())
        source_layout = _whole(source) if source_layout is None else source_layout
        hidden, routings = self._encode(source, source_layout, source_types)
        out, more = self._decode(tokens, layout, memory=Memory(hidden, source_layout), types=types)
        return out, routings + more

    def states(
        self, tokens: Int[Tensor, "B T"], layout: Layout | None = None, **more: Any
    ) -> list[Float[Tensor, "B T D"]]:
        """What leaves the entry and each block of the stack under the head, L + 1 tensors (L0-25); arguments as of `forward`.

        The final norm is in none of them: `forward` gives it of the last one.
        """
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        with stack.watched() as kept:
            self.run(tokens, layout, **more)
        return kept

    def encode(
        self, source: Int[Tensor, "B S"], layout: Layout | None = None, types: Int[Tensor, "B S"] | None = None
    ) -> Memory:
        """The encoder's output (L1-76).

        Raises:
            HeddleError: there is no encoder, or more tokens than there are learned positions.
        """
        self._check_encodes()
        check_ids("source", source, self._source_size())
        layout = _whole(source) if layout is None else layout
        return Memory(self._encode(source, layout, types)[0], layout)

    def decode(
        self,
        tokens: Int[Tensor, "B T"],
        queries: Layout,
        keys: Keys | None = None,
        states: Sequence[Any] | None = None,
        memory: Memory | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The decoder's hidden vectors of `tokens`, standing where `queries` says and seeing `keys`, with what `states` remember.

        Raises:
            HeddleError: there is no decoder, no memory of a source, or more tokens than there are learned positions. Where
                only tensors know that, it is an IndexError on a GPU (`step` looks before).
        """
        check_ids("tokens", tokens, self.vocab_size)
        return self._decode(tokens, queries, keys, states, memory, types)[0]

    def step(
        self,
        tokens: Int[Tensor, "B T"],
        cache: Cache,
        counts: Sequence[int] | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B t D"]:
        """Hidden vectors of the next tokens of every row of a cache, which remembers them.

        Of row b's T tokens the first `counts[b]` are real (all, if left out) and the rest is padding; t is the largest count,
        so what is padding in every row is left out.

        Raises:
            HeddleError: the cache has other rows, a count is not between 0 and T, or there are fewer learned positions.
        """
        if not isinstance(tokens, Tensor) or tokens.dim() != 2:
            raise wrong("model.step", "tokens", tokens, "a tensor of whole numbers of shape [B T]")
        if not isinstance(cache, Cache):
            raise wrong("model.step", "cache", cache, "a Cache, as model.new_cache gives it,")
        if not isinstance(counts, Sequence | None):
            raise wrong("model.step", "counts", counts, "a list of whole numbers")
        rows, width = tokens.shape
        counts = [width] * rows if counts is None else counts
        if not len(counts) == len(cache.lengths) == rows:
            raise HeddleError(
                f"{rows} rows of tokens and {len(counts)} counts for a cache of {len(cache.lengths)} rows"
            )
        if odd := [count for count in counts if not isinstance(count, int) or not 0 <= count <= width]:
            raise HeddleError(
                f"counts say {odd[0]!r} of the {width} tokens that each row has; 0 to {width} are possible"
            )
        most = max(counts, default=width)
        if most < width:
            tokens, types = tokens[:, :most], None if types is None else types[:, :most]
        if self.decoder is not None:
            self.decoder.check_length(max(map(sum, zip(cache.lengths, counts, strict=True)), default=0))
        queries, keys = cache.advance(counts, tokens.device)
        return self.decode(tokens, queries, keys, cache.states, cache.memory, types)

    @checked(rows=at_least(0))
    def new_cache(self, rows: int, memory: Memory | None = None) -> Cache:
        """An empty cache for `rows` sequences, which grows as tokens come; of an encoder-decoder, with the encoder's output.

        Raises:
            HeddleError: there is no decoder, or no memory where one is needed, or one of other rows.
        """
        if self.decoder is None:
            raise HeddleError("an encoder sees the whole at once: there is nothing to remember from token to token")
        self._check_memory(memory)
        return Cache(self.decoder.new_states(), rows, memory)

    def logits(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Scores of the next token (L0-73, L2-62). Entries beyond the vocabulary are -inf (D-13)."""
        head = self.language_head()
        if not isinstance(hidden, Tensor) or not hidden.is_floating_point() or hidden.shape[-1:] != (self.config.dim,):
            needed = f"a tensor of floating-point numbers of shape [… {self.config.dim}]"
            raise wrong("model.logits", "hidden", hidden, needed)
        scores: Tensor = head(hidden, None, self.embedding.weight)
        return scores

    def check_predicts_next(self) -> None:
        """Refuse, in words, a model that is no language model.

        Raises:
            HeddleError: it has an encoder, or a head that does not score tokens.
        """
        if self.encoder is not None or self.decoder is None:
            raise HeddleError("this model has an encoder; predicting the next token takes a decoder alone")
        self.language_head()

    @checked()
    def check_vocabulary(self, ids: int) -> None:
        """Refuse a tokenizer whose number of ids is not this model's vocabulary (L1-62).

        Raises:
            HeddleError: it has more or fewer.
        """
        if ids != self.vocab_size:
            raise HeddleError(
                f"the tokenizer has {ids} ids, the model's vocab_size is {self.vocab_size}: they were not made for each other"
            )

    def language_head(self) -> LanguageHead:
        """The head that scores tokens.

        Raises:
            HeddleError: this model has another head, or none.
        """
        if not isinstance(self.head, LanguageHead):
            raise HeddleError(f"this model's head is of kind {self.config.head.kind!r}: it does not score tokens")
        return self.head

    def head_weight(self) -> Float[Tensor, "V D"]:
        """The language head's matrix: the token table itself when tied (L0-75)."""
        return self.language_head().scoring(self.embedding.weight).table

    def working_dtype(self) -> torch.dtype:
        """What the blocks compute in: the dtype of their matrices, or of the token table where they have none.

        Tables and norms may be kept wider.
        """
        matrix = self.first_matrix()
        return next((self.embedding if matrix is None else matrix).parameters()).dtype

    def first_matrix(self) -> nn.Module | None:
        """The first module of the blocks that is computed with in the working precision; None where there is none."""
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return next((part for part in without_custom(stack.blocks) if isinstance(part, MATRICES)), None)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def _encode(
        self, source: Tensor, layout: Layout, types: Tensor | None = None
    ) -> tuple[Tensor, tuple[Routing, ...]]:
        self._check_encodes()
        assert self.encoder is not None
        _check_layout(source, layout)
        self.encoder.check_layout(layout)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        return self.encoder.run(table(source).to(self.working_dtype()), layout, types=types)

    def _decode(
        self,
        tokens: Tensor,
        queries: Layout,
        keys: Keys | None = None,
        states: Sequence[Any] | None = None,
        memory: Memory | None = None,
        types: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Routing, ...]]:
        if self.decoder is None:
            raise HeddleError("this model has no decoder")
        _check_layout(tokens, queries)
        self._check_memory(memory)
        self.decoder.check_layout(queries)
        x = self.embedding(tokens).to(self.working_dtype())
        return self.decoder.run(x, queries, keys, states, memory, types)

    def _source_size(self) -> int:
        """How many ids the encoder knows."""
        return self.vocab_size if self.config.source_vocab_size is None else self.config.source_vocab_size

    def _check_encodes(self) -> None:
        if self.encoder is None:
            raise HeddleError("this model has no encoder")

    def _check_memory(self, memory: Memory | None) -> None:
        if (memory is None) != (self.encoder is None):
            raise HeddleError(
                "this model's decoder looks at an encoder's output; give memory = model.encode(source)"
                if memory is None
                else "this model has no encoder, so its decoder looks at no memory"
            )


def _check_layout(tokens: Tensor, layout: Layout) -> None:
    """Refuse a layout of another batch, which would be spread over it (L1-15)."""
    if not isinstance(layout, Layout):
        raise wrong("model", "layout", layout, "a Layout, such as Layout.padded(lengths, width),")
    if layout.position.shape != tokens.shape:
        raise HeddleError(
            f"the layout is of [B T] = {list(layout.position.shape)}, the tokens are {list(tokens.shape)}"
        )


def _whole(tokens: Tensor) -> Layout:
    rows, width = tokens.shape if tokens.dim() == 2 else (0, 0)  # another shape is refused where the layout is used
    return Layout.plain(rows, width, tokens.device)
