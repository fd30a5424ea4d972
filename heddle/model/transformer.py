"""The transformer: tokens to hidden vectors to logits. Training, prefill and decoding are the same call."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import at_least, checked, wrong
from heddle.config.model import StackConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model.entry import check_hidden, first_matrix
from heddle.model.head import LanguageHead
from heddle.model.pooled import Classifier, make_head
from heddle.model.stack import Stack
from heddle.model.summary import summary
from heddle.nn.cache import Cache
from heddle.nn.embedding import Embedding, check_ids
from heddle.nn.layout import Layout
from heddle.nn.output import EncoderOutput, Hidden, Output, Routing
from heddle.nn.state import ROUND


class Transformer(nn.Module):
    """A transformer: token tables, an encoder, a decoder or both, and a head (L0-09, L1-76 … L1-83, L3-04 … L3-06).

    `forward` returns hidden vectors; the head is applied separately, since a loss applies the language head chunk by chunk,
    and decoding only at the last position.

    Attributes:
        steps: its compiled decoding steps, see `heddle.model.compiling`; None: not compiled.
    """

    steps: Callable[[Int[Tensor, "B 1"], Cache], Float[Tensor, "B V"]] | None = None

    @checked()
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        width = config.last()[1].entry.tokens_dim(config.dim)
        self.embedding = Embedding(config.table_rows(), width)
        self.source_embedding = None
        if config.source_vocab_size is not None and config.encoder is not None:
            self.source_embedding = Embedding(config.source_rows(), config.encoder.entry.tokens_dim(config.dim))

        def stack(part: StackConfig | None, causal: bool) -> Stack | None:
            return None if part is None else Stack(part, config.dim, config.context, causal, config.dropout)

        self.encoder = stack(config.encoder, causal=False)
        self.decoder = stack(config.decoder, causal=True)
        self.head = make_head(config)

    def __repr__(self) -> str:
        return summary(self, self.config)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        layout: Layout | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_layout: Layout | None = None,
        types: Int[Tensor, "B T"] | None = None,
        source_types: Int[Tensor, "B S"] | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """Hidden vectors [B T D] of `tokens`, and the routers' reports: training, scoring, prefill and each decoding step.

        A decoder's vector at each position predicts the token after that prefix (L0-01); an encoder's vectors see the whole
        sequence. With a cache, `tokens` are the next tokens of each of its rows, and are added to it.

        Args:
            tokens: ids.
            layout: layout of the tokens. None: whole sequences, or the next T tokens of every row of the cache. For rows
                with different numbers of new tokens: `cache.advance(counts)`, with tokens padded to the largest count.
            source: ids for the encoder of an encoder-decoder; with a cache, passed only in the cache's first call.
            source_layout: layout of the source; None: whole sequences.
            types: token types, if the model has a table of them; None: all of type 0.
            source_types: token types of the source.
            cache: the decoder's states, see `new_cache`.

        Raises:
            HeddleError: an argument does not apply to this model, or a source is missing; shapes do not match; there are more
                tokens than learned positions. On a GPU, ids out of range are an IndexError.
        """
        check_ids("tokens", tokens, self.vocab_size)
        self.last_stack().entry.check_types(types, tuple(tokens.shape))
        if not isinstance(cache, Cache | None):
            raise wrong("model", "cache", cache, "a Cache from model.new_cache")
        if self.encoder is None or self.decoder is None:
            if not (source is None and source_layout is None and source_types is None):
                raise HeddleError("this model has no source: leave out source, source_layout and source_types")
            return self.last_stack()(self._embed(tokens), self._layout(tokens, layout, cache), cache, types=types)
        encoded, routings = self._encode(len(tokens), source, source_layout, source_types, cache)
        # The last thing that may be refused: it makes the cache longer.
        layout = self._layout(tokens, layout, cache)
        out: Output = self.decoder(self._embed(tokens), layout, cache, encoded, types)
        if cache is not None:
            cache.encoded = encoded
        return Output(out.hidden, routings + out.routings)

    def states(self, tokens: Int[Tensor, "B T"], *arguments: Any, **keywords: Any) -> list[Hidden]:
        """The outputs of the entry and of each block of the last stack, L + 1 tensors, before the final norm (L0-25).

        Arguments are those of `forward`.
        """
        with self.last_stack().watched() as outputs:
            self(tokens, *arguments, **keywords)
        return outputs

    @checked(rows=at_least(0), multiple=at_least(1))
    def new_cache(self, rows: int, multiple: int = ROUND) -> Cache:
        """An empty cache for `rows` sequences, which grows with their tokens by multiples of `multiple`.

        Raises:
            HeddleError: the model has no decoder.
        """
        if self.decoder is None:
            raise HeddleError("this model has no decoder, so it cannot use a cache: call it on whole sequences")
        return Cache(self.decoder.new_states(), rows, self.decoder.longest, self.decoder.prefix, multiple)

    def logits(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Scores of the next token (L0-73, L2-62): V columns, without the padding rows of the table (D-13).

        Every score is finite, so any loss of them is, too. The head itself gives padding rows -inf.
        """
        head = self.language_head()
        check_hidden("model.logits", hidden, self.config.dim)
        return head(hidden, None, self.embedding.weight)[..., : self.vocab_size]

    def scores(self, hidden: Float[Tensor, "*rows D"], layout: Layout | None = None) -> Float[Tensor, "B *some C"]:
        """Scores of the classes, before any softmax: [B C] of each sequence or, if the head pools nothing, [B T C] of each token.

        Args:
            hidden: the hidden vectors of whole sequences, Float[B T D].
            layout: their layout, which marks padding; None: every row is one sequence.

        Raises:
            HeddleError: this model's head is not a classifier, or `hidden` has another shape.
        """
        if not isinstance(self.head, Classifier):
            raise HeddleError(f"this model's head is of kind {self.config.head.kind!r}, which does not score classes")
        check_hidden("model.scores", hidden, self.config.dim, "B T ")
        return self.head(hidden, layout, self.embedding.weight)

    def check_predicts_next(self) -> None:
        """Check that this is a causal language model.

        Raises:
            HeddleError: it has an encoder, or a head that does not score tokens.
        """
        if self.encoder is not None or self.decoder is None:
            raise HeddleError("this model has an encoder; predicting the next token needs a decoder-only model")
        self.language_head()

    @checked()
    def check_vocabulary(self, ids: int) -> None:
        """Check that a tokenizer's number of ids equals the size of this model's vocabulary (L1-62).

        Raises:
            HeddleError: they differ.
        """
        if ids != self.vocab_size:
            raise HeddleError(
                f"the tokenizer has {ids} ids, but the model's vocab_size is {self.vocab_size}: use the model's own tokenizer"
            )

    def language_head(self) -> LanguageHead:
        """The head that scores tokens.

        Raises:
            HeddleError: the model has no language head.
        """
        if not isinstance(self.head, LanguageHead):
            raise HeddleError(f"this model's head is of kind {self.config.head.kind!r}, which does not score tokens")
        return self.head

    def head_weight(self) -> Float[Tensor, "V D"]:
        """The language head's matrix: the token table itself when tied (L0-75)."""
        return self.language_head().scoring(self.embedding.weight).table

    def last_stack(self) -> Stack:
        """The stack below the head: the decoder, or the encoder if there is no decoder."""
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return stack

    def working_dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in: that of their matrices, or of the token table if they have none.

        Tables and norms may be wider.
        """
        matrix = self.first_matrix()
        return next((self.embedding if matrix is None else matrix).parameters()).dtype

    def first_matrix(self) -> nn.Module | None:
        """The first module in the blocks whose weights are in the working precision, or None."""
        return first_matrix(self.last_stack().blocks)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.weight.device

    def _layout(self, tokens: Tensor, layout: Layout | None, cache: Cache | None) -> Layout:
        """The layout of the tokens, which the stack then checks."""
        rows, width = tokens.shape
        if cache is None:
            return Layout.whole(rows, width, tokens.device) if layout is None else layout
        if self.decoder is None:
            raise HeddleError("this model has no decoder, so it cannot use a cache: leave out cache")
        if layout is not None and layout is not cache.queries:
            raise wrong("model", "layout", layout, "the layout that the last cache.advance returned")
        return cache.advance([width] * rows, tokens.device) if layout is None else layout

    def _encode(
        self, rows: int, source: Tensor | None, layout: Layout | None, types: Tensor | None, cache: Cache | None
    ) -> tuple[EncoderOutput, tuple[Routing, ...]]:
        """The encoder's output: for the source, or from the cache after its first call (L1-76)."""
        assert self.encoder is not None
        if cache is not None and cache.encoded is not None:
            if not (source is None and layout is None and types is None):
                raise HeddleError("this cache has already read its source: leave out source after the first call")
            return cache.encoded, ()
        if source is None:
            when = "" if cache is None else " in the first call with a cache"
            raise HeddleError(f"this model reads a source as well as tokens: pass source{when}")
        check_ids("source", source, self.config.source_vocab_size or self.vocab_size)
        if source.shape[0] != rows:
            raise HeddleError(f"{source.shape[0]} rows of source for {rows} rows of tokens: pass one source per row")
        layout = Layout.whole(rows, source.shape[1], source.device) if layout is None else layout
        out: Output = self.encoder(self._embed(source, self.source_embedding), layout, types=types)
        return EncoderOutput(out.hidden, layout), out.routings

    def _embed(self, tokens: Tensor, table: Embedding | None = None) -> Float[Tensor, "B T d"]:
        return (self.embedding if table is None else table)(tokens).to(self.working_dtype())
