"""What a transformer is, as data: which stacks are present and, for every layer, what stands in it.

Read this first, with `config/layers.py` at hand for the choices inside a layer: together they are the whole vocabulary of
the project. Nothing here imports torch.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heddle.config.base import Config, merge, plain, with_kind
from heddle.config.ids import SpecialIds
from heddle.config.layers import (
    ActivationName,
    AttentionConfig,
    DropoutConfig,
    FeedForwardConfig,
    LayerNormConfig,
    MixerConfig,
    MLPConfig,
    MoEConfig,
    NoFeedForwardConfig,
    NormConfig,
    Positive,
    Rate,
    Size,
)
from heddle.config.possible import dropout_possible, stack_possible
from heddle.errors import HeddleError

Depth = Annotated[int, Field(gt=0, le=1000)]  # the deepest that was ever trained (Wang et al. 2022)
Placement = Literal["pre", "post", "sandwich", "output", "literal", "bare"]


class BlockConfig(Config):
    """One layer: a mixer, in a decoder perhaps cross-attention, and a feed-forward, each inside a residual."""

    mixer: MixerConfig
    cross: AttentionConfig | None = None  # looks at the encoder's output (L1-78)
    ffn: FeedForwardConfig = MLPConfig()
    norm: NormConfig = LayerNormConfig()
    # Where norms stand: before the branch (L2-35), after the sum (L2-24), before and after the branch (Gemma 2), after the
    # branch (OLMo 2), deck 000 to the letter, whose skip starts behind the norm (D-01), or no residual at all.
    placement: Placement = "pre"
    # parallel: mixer and feed-forward read the same x and their sum is added once, each behind a norm of its own (GPT-NeoX,
    # Falcon 40B) or both behind one (Falcon 7B).
    wiring: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    dropout: Rate = 0.0  # on each branch's output, before the sum (L0-29)

    @model_validator(mode="before")
    @classmethod
    def _plain_mixer(cls, data: Any) -> Any:
        """`mixer = {heads = 4}` speaks of attention."""
        return with_kind(data, "mixer", "attention")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        cross = self.cross
        if cross is not None and (cross.relative is not None or cross.window is not None):
            raise ValueError("cross-attention looks at another sequence: it has no relative positions and no window")
        if self.wiring != "serial":
            if self.placement != "pre" or cross is not None or isinstance(self.ffn, NoFeedForwardConfig):
                raise ValueError(
                    f"wiring = {self.wiring!r} needs placement = 'pre', a feed-forward and no cross-attention"
                )
            if isinstance(self.ffn, MoEConfig) and self.ffn.skip == "internal":
                raise ValueError("skip = 'internal' replaces the feed-forward's own residual; parallel wiring has none")
        return self


class EntryConfig(Config):
    """What happens to token embeddings before the first block."""

    # Absolute positions; relative ones live in the mixer. `sinusoidal` puts sine and cosine side by side (Vaswani et al. 2017,
    # 3.5), `sinusoidal_halves` all sines before all cosines (Marian).
    positions: Literal["learned", "sinusoidal", "sinusoidal_halves", "none"] = "none"
    combine: Literal["sum", "concat"] = "sum"  # (L0-16, D-28)
    position_dim: Size | None = None  # with concat: width of the position part; None: half of dim
    # Rows of a learned table before position 0: 2 in BART's and OPT's.
    offset: Annotated[int, Field(ge=0, le=2**16)] = 0
    scale: bool = False  # embeddings times √dim (Vaswani et al. 2017, 3.4; D-30)
    types: Annotated[int, Field(ge=0, le=2**16)] = 0  # token types (segments) with a vector each (BERT)
    norm: NormConfig | None = None  # behind the sum
    dropout: Rate = 0.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.combine == "concat" and self.positions == "none":
            raise ValueError("combine = 'concat' needs positions to put beside the embeddings")
        if self.offset and self.positions != "learned":
            raise ValueError("offset speaks of a table of learned positions, and there is none")
        if self.combine == "sum" and self.position_dim is not None:
            raise ValueError("position_dim belongs to combine = 'concat'; summed positions are as wide as the model")
        return self

    def token_dim(self, dim: int) -> int:
        """Width of a token's own vector."""
        return dim if self.combine == "sum" else dim - self.positions_dim(dim)

    def positions_dim(self, dim: int) -> int:
        """Width of a position's vector."""
        return dim if self.combine == "sum" else (self.position_dim or dim // 2)


class Override(Config):
    """Layers that differ: `layers` is a number or a Python slice (`0`, `-1`, `::2`, `5::6`), `block` what differs there."""

    layers: str
    block: dict[str, Any]

    @field_validator("block")
    @classmethod
    def _plain(cls, block: dict[str, Any]) -> dict[str, Any]:
        """As a file would give it back: lists instead of tuples, tables instead of configs."""
        return {key: plain(value) for key, value in block.items()}

    @model_validator(mode="after")
    def _said(self) -> Self:
        if not re.fullmatch(r"-?\d+|(-?\d+)?:(-?\d+)?(:[1-9]\d*)?", self.layers):
            raise ValueError(f"layers = {self.layers!r} is neither a number nor a slice such as '5::6'")
        if path := _empty(self.block):
            raise ValueError(
                f"{path} is empty; TOML cannot say that, so leave it out of `block` and set it in other layers"
            )
        return self

    def chosen(self, depth: int) -> range:
        """The layers meant, of a stack of `depth`."""
        if ":" not in self.layers:
            number = int(self.layers)
            return range(depth)[number : number + 1 or None]
        return range(depth)[slice(*(int(part) if part else None for part in self.layers.split(":")))]


def _empty(data: dict[str, Any]) -> str:
    """The first dotted path whose value is None, or nothing."""
    for key, value in data.items():
        if value is None:
            return key
        if isinstance(value, dict) and (inner := _empty(value)):
            return f"{key}.{inner}"
    return ""


class StackConfig(Config):
    """`depth` blocks between an entry and an optional final norm: all are `block`, except where an override says otherwise."""

    depth: Depth
    block: BlockConfig
    overrides: tuple[Override, ...] = ()
    entry: EntryConfig = EntryConfig()
    final_norm: bool | None = None  # None: exactly when the norm stands before the branch (D-06)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for override in self.overrides:
            if not override.chosen(self.depth):
                raise ValueError(f"overrides: layers = {override.layers!r} means none of the {self.depth} layers")
        _ = self.blocks
        return self

    @cached_property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """What stands in each layer. Of two overrides of one layer the later one counts."""
        chosen = [each.chosen(self.depth) for each in self.overrides]
        which = [tuple(n for n, layers in enumerate(chosen) if number in layers) for number in range(self.depth)]
        made = {changes: self._block(changes) for changes in dict.fromkeys(which)}  # equal layers are one object
        return tuple(made[changes] for changes in which)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, perhaps with other fields; its blocks are derived anew, unless they are given."""
        copied = super().model_copy(update=update, deep=deep)
        if "blocks" not in (update or {}):
            copied.__dict__.pop("blocks", None)
        return copied

    def _block(self, changes: tuple[int, ...]) -> BlockConfig:
        if not changes:
            return self.block
        data = self.block.model_dump(mode="json")
        for number in changes:
            data = merge(data, self.overrides[number].block)
        try:
            return BlockConfig.of(data, where="overrides.block")
        except HeddleError as error:  # pydantic knows a refusal by its type
            raise ValueError(str(error)) from None

    def ends_in_norm(self) -> bool:
        """Whether a norm stands between the last block and the head."""
        return self.block.placement == "pre" if self.final_norm is None else self.final_norm


Pooling = Literal["first", "last", "mean", "max"]


class LanguageHeadConfig(Config):
    """Scores of the vocabulary: logits = hidden @ E^T, with E the token table when tied (D-25, L0-75)."""

    kind: Literal["language"] = "language"
    tied: bool = True
    bias: bool = False  # (D-26)
    transform: bool = False  # dense layer, activation and LayerNorm before the scores (BERT)
    activation: ActivationName = "gelu"  # of the transform
    eps: Annotated[float, Field(ge=0)] = 1e-12  # of the transform's LayerNorm
    scale: Positive = 1.0  # factor on the hidden vectors; T5 has 1/√dim
    cap: Positive | None = None  # logits become cap · tanh(logits / cap) (Gemma 2)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.transform and (self.activation, self.eps) != ("gelu", 1e-12):
            raise ValueError("activation and eps speak of the head's transform, of which there is none: set transform")
        return self


class ClassifierHeadConfig(Config):
    """Scores of `classes` for a whole sequence: a linear map of its pooled hidden vectors (L1-93)."""

    kind: Literal["classifier"] = "classifier"
    classes: Size
    pooling: Pooling = "first"
    dense: bool = False  # tanh of a dense layer before it (BERT's pooler)
    dropout: Rate = 0.0  # on the pooled vector


class EmbeddingHeadConfig(Config):
    """One vector for a whole sequence."""

    kind: Literal["embedding"] = "embedding"
    pooling: Pooling = "mean"
    dense: bool = False
    normalise: bool = False  # to length 1


class NoHeadConfig(Config):
    """A bare stack: hidden vectors are what comes out."""

    kind: Literal["none"] = "none"


HeadConfig = Annotated[
    LanguageHeadConfig | ClassifierHeadConfig | EmbeddingHeadConfig | NoHeadConfig, Field(discriminator="kind")
]


class InitialConfig(Config):
    """Initial weights (L0-13, D-45).

    `normal` draws every matrix from N(0, std²) and, with `scale_residual`, what a branch adds to the stream smaller by the
    root of the number of branches: nanoGPT's rule. `xavier` draws matrices uniformly by their sizes.
    """

    rule: Literal["normal", "xavier"] = "normal"
    std: Positive = 0.02
    position_std: Positive | None = None  # of learned positions; None: std. GPT-2's code has 0.01
    scale_residual: bool = True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rule == "xavier" and self != InitialConfig.model_construct(rule="xavier"):
            raise ValueError("rule = 'xavier' draws by sizes alone: leave out std, position_std and scale_residual")
        return self


class TransformerConfig(Config):
    """A whole model. The family is which stacks are present.

    A decoder alone is a causal language model, an encoder alone sees both ways, and with both the decoder's cross-attention
    looks at the encoder's output.
    """

    vocab_size: Annotated[int, Field(gt=0, le=2**31)]
    # Of the encoder's own table; None: one table for both.
    source_vocab_size: Annotated[int, Field(gt=0, le=2**31)] | None = None
    # The table's rows are rounded up to a multiple of this; extra entries are masked (L0-86).
    pad_vocab_to: Annotated[int, Field(gt=0, le=2**16)] = 1
    dim: Size
    context: Annotated[int, Field(gt=0, le=2**31)]  # longest sequence in training; a hard limit with learned positions
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: HeadConfig = LanguageHeadConfig()
    dropout: DropoutConfig = DropoutConfig()
    initial: InitialConfig = InitialConfig()
    # Of an imported model. None: it is heddle's own, and its tokenizer's end of a text is all there is.
    ids: SpecialIds | None = None
    architecture: str | None = None  # the class that it was published as; an export prefers it among those that fit

    @model_validator(mode="before")
    @classmethod
    def _plain_head(cls, data: Any) -> Any:
        """`head = {tied = false}` speaks of the usual head."""
        return with_kind(data, "head", "language")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise ValueError("a model needs an encoder, a decoder or both")
        both = self.encoder is not None and self.decoder is not None
        if self.source_vocab_size is not None and not both:
            raise ValueError("source_vocab_size is of an encoder's own table beside a decoder's; there are not both")
        for name, stack in self.stacks().items():
            stack_possible(name, stack, self.dim)
            dropout_possible(name, stack, self.dropout)
            crossing = [block.cross is not None for block in stack.blocks]
            if any(crossing) and (name == "encoder" or self.encoder is None):
                raise ValueError(f"{name}.block.cross needs an encoder to look at, and stands in a decoder")
            if name == "decoder" and both and not any(crossing):
                raise ValueError("decoder.block.cross is missing: nothing would look at the encoder's output")
        self._tables_possible()
        count = max(self.vocab_size, self.source_vocab_size or 0)
        if self.ids is not None and self.ids.largest() >= count:
            raise ValueError(
                f"ids speaks of the id {self.ids.largest()}, and the model has only {count}: 0 to {count - 1}"
            )
        if self.initial.position_std and all(each.entry.positions != "learned" for each in self.stacks().values()):
            raise ValueError("initial.position_std speaks of learned positions, and there are none")
        if self.decoder is not None and isinstance(self.head, ClassifierHeadConfig | EmbeddingHeadConfig) and both:
            raise ValueError(f"head.kind = {self.head.kind!r} reads one sequence; an encoder-decoder has two")
        return self

    def _tables_possible(self) -> None:
        widths = {name: stack.entry.token_dim(self.dim) for name, stack in self.stacks().items()}
        if min(widths.values()) < 1:
            raise ValueError(f"entry.position_dim leaves no room for tokens in dim = {self.dim}")
        if self.source_vocab_size is None and len(set(widths.values())) > 1:
            raise ValueError("encoder and decoder share one table, so their entries must be equally wide")
        if isinstance(self.head, LanguageHeadConfig) and self.head.tied and widths[self.last()[0]] != self.dim:
            raise ValueError(
                "head.tied needs token vectors as wide as the model; with combine = 'concat' set head.tied = false"
            )

    def stacks(self) -> dict[str, StackConfig]:
        """The stacks that are present, by name, in the order they run."""
        found = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in found.items() if stack is not None}

    def last(self) -> tuple[str, StackConfig]:
        """Name and config of the stack under the head."""
        return list(self.stacks().items())[-1]

    def shallow(self) -> Self:
        """The same model with one layer per stack, to measure a part for the whole."""
        data = self.to_dict()
        for name, stack in self.stacks().items():
            data[name] |= {"depth": 1, "overrides": [], "final_norm": stack.ends_in_norm()}
        return type(self).of(data)

    def table_rows(self) -> int:
        """Rows of the token table: `vocab_size` rounded UP to a multiple of `pad_vocab_to` (D-13)."""
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def source_rows(self) -> int:
        """Rows of the encoder's own token table, rounded alike."""
        return -(-(self.source_vocab_size or self.vocab_size) // self.pad_vocab_to) * self.pad_vocab_to


def with_kernel(config: TransformerConfig, kernel: str) -> TransformerConfig:
    """The same model with another attention kernel everywhere.

    Raises:
        HeddleError: there is no such kernel.
    """
    data = config.to_dict()
    for stack in (data[name] for name in config.stacks()):
        for block in (stack["block"], *[each["block"] for each in stack["overrides"]]):
            for place in ("mixer", "cross"):
                part = block.get(place)
                if isinstance(part, dict) and (part.get("kind") == "attention" or "kernel" in part):
                    part["kernel"] = kernel
    return TransformerConfig.of(data)
