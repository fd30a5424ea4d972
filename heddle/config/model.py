"""A transformer as data: its stacks, and the contents of every layer.

Read this first, with `config/layers.py` for the choices inside a layer. Nothing here imports torch.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heddle.config.base import Config, merge, to_data, with_kind
from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.data import Prompts
from heddle.config.decoding import DecodingDefaults
from heddle.config.embedding import EmbeddingHeadConfig, Pooling
from heddle.config.entry import EntryConfig
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
)
from heddle.config.possible import dropout_possible, stack_possible
from heddle.config.sizes import Positive, Rate, Size
from heddle.errors import HeddleError

Depth = Annotated[int, Field(gt=0, le=1000)]  # the deepest ever trained (Wang et al. 2022)
Placement = Literal["pre", "pre_ffn", "post", "sandwich", "output", "literal", "bare"]


class BlockConfig(Config):
    """One layer: a mixer, cross-attention in the decoder of an encoder-decoder, and a feed-forward, each inside a residual."""

    mixer: MixerConfig
    cross: AttentionConfig | None = None  # attends to the encoder's output (L1-78)
    ffn: FeedForwardConfig = MLPConfig()
    norm: NormConfig = LayerNormConfig()
    # Where the norms are. pre: before the branch (L2-35); pre_ffn: before the feed-forward only, for a mixer whose input is
    # normed already (ModernBERT's first layer); post: after the sum (L2-24); sandwich: before and after the branch
    # (Gemma 2); output: after the branch (OLMo 2); literal: as written in deck 000, where the skip starts after the norm
    # (D-01); bare: before the branch, without a residual.
    placement: Placement = "pre"
    # parallel: mixer and feed-forward read the same x and their sum is added once, each after its own norm (GPT-NeoX,
    # Falcon 40B) or both after one (Falcon 7B).
    wiring: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    branch_scale: Positive = 1.0  # factor on each branch's output, before the sum (Granite)
    dropout: Rate = 0.0  # on each branch's output, before the sum (L0-29)

    @model_validator(mode="before")
    @classmethod
    def _plain_mixer(cls, data: Any) -> Any:
        """`mixer = {heads = 4}` means attention."""
        return with_kind(data, "mixer", "attention")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        cross = self.cross
        if cross is not None and (cross.relative is not None or cross.window is not None):
            raise ValueError("cross-attention attends to another sequence: leave out its relative positions and window")
        if self.wiring != "serial":
            if self.placement != "pre" or cross is not None or isinstance(self.ffn, NoFeedForwardConfig):
                raise ValueError(
                    f"wiring = {self.wiring!r} needs placement = 'pre', a feed-forward and no cross-attention"
                )
            if isinstance(self.ffn, MoEConfig) and self.ffn.skip == "internal":
                raise ValueError("skip = 'internal' replaces the feed-forward's residual; parallel wiring has none")
        return self


class Override(Config):
    """Layers that differ: `layers` is a number or a Python slice (`0`, `-1`, `::2`, `5::6`), `block` their differences."""

    layers: str
    block: dict[str, Any]

    @field_validator("block")
    @classmethod
    def _plain(cls, block: dict[str, Any]) -> dict[str, Any]:
        """Plain data, as from a file: lists instead of tuples, tables instead of configs."""
        return {key: to_data(value) for key, value in block.items()}

    @model_validator(mode="after")
    def _valid(self) -> Self:
        if not re.fullmatch(r"-?\d+|(-?\d+)?:(-?\d+)?(:[1-9]\d*)?", self.layers):
            raise ValueError(f"layers = {self.layers!r} is neither a number nor a slice such as '5::6'")
        if path := _empty(self.block):
            raise ValueError(
                f"{path} is None, which TOML cannot express: leave it out of `block` and set it in the other layers"
            )
        return self

    def chosen(self, depth: int) -> range:
        """The indices of these layers in a stack of `depth`."""
        if ":" not in self.layers:
            number = int(self.layers)
            return range(depth)[number : number + 1 or None]
        return range(depth)[slice(*(int(part) if part else None for part in self.layers.split(":")))]


def _empty(data: dict[str, Any]) -> str:
    """The first dotted path whose value is None, or an empty string."""
    for key, value in data.items():
        if value is None:
            return key
        if isinstance(value, dict) and (inner := _empty(value)):
            return f"{key}.{inner}"
    return ""


class StackConfig(Config):
    """`depth` blocks between an entry and an optional final norm. All are `block`, except for overrides."""

    depth: Depth
    block: BlockConfig
    overrides: tuple[Override, ...] = ()
    entry: EntryConfig = EntryConfig()
    final_norm: bool | None = None  # None: only if the norm is before the branch (D-06)
    # Tokens of a prefix see each other in both directions, those after it are causal (Raffel et al. 2020, 3.2.1). The task or
    # the layout sets the end of the prefix; with a cache, the prefix is the tokens of the first call.
    prefix: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for override in self.overrides:
            if not override.chosen(self.depth):
                raise ValueError(
                    f"overrides: layers = {override.layers!r} does not select any of the {self.depth} layers"
                )
        _ = self.blocks
        return self

    @cached_property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """The config of each layer. If two overrides set the same key of a layer, the later one counts."""
        layers_of_override = [override.chosen(self.depth) for override in self.overrides]
        overrides_of_layer = [
            tuple(n for n, layers in enumerate(layers_of_override) if number in layers) for number in range(self.depth)
        ]
        # Equal layers are one object.
        blocks = {changes: self._block(changes) for changes in dict.fromkeys(overrides_of_layer)}
        return tuple(blocks[changes] for changes in overrides_of_layer)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced. Its blocks are derived again, unless `update` has them."""
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
        except HeddleError as error:  # pydantic reports only ValueErrors
            raise ValueError(str(error)) from None

    def ends_in_norm(self) -> bool:
        """Whether there is a norm between the last block and the head."""
        return self.block.placement == "pre" if self.final_norm is None else self.final_norm


class LanguageHeadConfig(Config):
    """Scores of the vocabulary: logits = hidden @ E^T, with E the token table when tied (D-25, L0-75)."""

    kind: Literal["language"] = "language"
    tied: bool = True
    bias: bool = False  # (D-26)
    transform: bool = False  # dense layer, activation and LayerNorm before the scores (BERT)
    activation: ActivationName = "gelu"  # of the transform
    eps: Annotated[float, Field(ge=0)] = 1e-12  # of the transform's LayerNorm
    transform_bias: bool = True  # in the dense layer and the LayerNorm
    scale: Positive = 1.0  # factor on the hidden vectors; T5 has 1/√dim
    cap: Positive | None = None  # logits become cap · tanh(logits / cap) (Gemma 2)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.transform and (self.activation, self.eps, self.transform_bias) != ("gelu", 1e-12, True):
            raise ValueError(
                "activation, eps and transform_bias belong to the head's transform: set transform = true, or leave them out"
            )
        return self


class ClassifierHeadConfig(Config):
    """Scores of `classes`: a linear map of a sequence's pooled hidden vectors (L1-93), or of each token's vector.

    A text has one class, with probabilities softmax(scores); with `several`, any number, each with probability sigmoid(score).
    """

    kind: Literal["classifier"] = "classifier"
    classes: Size
    names: tuple[str, ...] = ()  # of the classes, in the order of their numbers; may be empty
    pooling: Pooling | Literal["none"] = "first"  # none: scores for each token
    dense: bool = False  # a dense layer and an activation before it (BERT's pooler)
    activation: ActivationName = "tanh"  # of the dense layer
    dropout: Rate = 0.0  # on the vector that is scored
    several: bool = False  # whether a text may have several of the classes, or none
    threshold: Annotated[float, Field(gt=0, lt=1)] = (
        0.5  # with `several`: the probability above which a text has a class
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.several and self.pooling == "none":
            raise ValueError("several = true: a token has one class; leave it out, or set a pooling")
        if not self.several and self.threshold != 0.5:
            raise ValueError(f"threshold = {self.threshold} has no effect without several = true: leave it out")
        if self.names and (len(self.names) != self.classes or len(set(self.names)) != self.classes):
            raise ValueError(f"names = {list(self.names)} must be {self.classes} different names, one for each class")
        if not self.dense and self.activation != "tanh":
            raise ValueError("activation belongs to the head's dense layer: set dense = true, or leave it out")
        return self


class NoHeadConfig(Config):
    """No head: the model's output is its hidden vectors."""

    kind: Literal["none"] = "none"


HeadConfig = Annotated[
    LanguageHeadConfig | ClassifierHeadConfig | EmbeddingHeadConfig | NoHeadConfig, Field(discriminator="kind")
]


class InitialConfig(Config):
    """Initial weights (L0-13, D-45).

    `normal` draws every matrix from N(0, std²); `scale_residual` divides the std of each branch's last matrix by the root of the
    number of branches, as in nanoGPT. `xavier` draws matrices uniformly, with bounds from their sizes.
    """

    rule: Literal["normal", "xavier"] = "normal"
    std: Positive = 0.02
    position_std: Positive | None = None  # of learned positions; None: std. GPT-2's code has 0.01
    scale_residual: bool = True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rule == "xavier" and self != InitialConfig.model_construct(rule="xavier"):
            raise ValueError("rule = 'xavier' depends on sizes only: leave out std, position_std and scale_residual")
        return self


class TransformerConfig(Config):
    """A model. Its stacks determine its family.

    A decoder alone is a causal language model, or a prefix language model; an encoder alone is bidirectional; with both, the
    decoder's cross-attention attends to the encoder's output.
    """

    vocab_size: Annotated[int, Field(gt=0, le=2**31)]
    # Ids of a separate table for the encoder; None: one table for both.
    source_vocab_size: Annotated[int, Field(gt=0, le=2**31)] | None = None
    # The table's rows are rounded up to a multiple of this; padding entries are masked (L0-86).
    pad_vocab_to: Annotated[int, Field(gt=0, le=2**16)] = 1
    dim: Size
    context: Annotated[int, Field(gt=0, le=2**31)]  # longest sequence in training; a hard limit with learned positions
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: HeadConfig = LanguageHeadConfig()
    dropout: DropoutConfig = DropoutConfig()
    initial: InitialConfig = InitialConfig()
    # Of an imported model. None: heddle's own model, whose only special id is its tokenizer's end of text.
    ids: SpecialIds | None = None
    prompts: Prompts = "anywhere"  # decided by the task and the layout of its texts
    architecture: str | None = None  # the published class; an export prefers it among those that fit
    decoding: DecodingDefaults | None = None  # of an imported model: how its texts are generated by default
    chat: ChatTemplateConfig | None = None  # how a conversation becomes the text that the model was trained on

    @model_validator(mode="before")
    @classmethod
    def _plain_head(cls, data: Any) -> Any:
        """`head = {tied = false}` means a language head."""
        return with_kind(data, "head", "language")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.encoder is None and self.decoder is None:
            raise ValueError("a model needs an encoder, a decoder or both")
        both = self.encoder is not None and self.decoder is not None
        if self.source_vocab_size is not None and not both:
            raise ValueError("source_vocab_size needs both an encoder and a decoder: leave it out")
        for name, stack in self.stacks().items():
            stack_possible(name, stack, self.dim)
            dropout_possible(name, stack, self.dropout)
            crossing = [block.cross is not None for block in stack.blocks]
            if any(crossing) and (name == "encoder" or self.encoder is None):
                raise ValueError(f"{name}.block.cross needs an encoder, and is allowed only in a decoder")
            if name == "decoder" and both and not any(crossing):
                raise ValueError("decoder.block.cross is missing: without it the decoder cannot attend to the encoder")
        self._tables_possible()
        count = max(self.vocab_size, self.source_vocab_size or 0)
        if self.ids is not None and self.ids.largest() >= count:
            raise ValueError(f"ids: id {self.ids.largest()} is out of range (vocab size {count})")
        if self.initial.position_std and all(stack.entry.positions != "learned" for stack in self.stacks().values()):
            raise ValueError("initial.position_std applies to learned positions only: leave it out")
        if self.decoder is not None and isinstance(self.head, ClassifierHeadConfig | EmbeddingHeadConfig) and both:
            raise ValueError(f"head.kind = {self.head.kind!r} reads one sequence; an encoder-decoder has two")
        return self

    def _tables_possible(self) -> None:
        widths = {name: stack.entry.tokens_dim(self.dim) for name, stack in self.stacks().items()}
        if min(widths.values()) < 1:
            raise ValueError(f"entry.position_dim leaves no room for tokens in dim = {self.dim}")
        if self.source_vocab_size is None and len(set(widths.values())) > 1:
            raise ValueError("encoder and decoder share one table, so their entries must have the same token width")
        if isinstance(self.head, LanguageHeadConfig) and self.head.tied and widths[self.last()[0]] != self.head_width():
            raise ValueError(
                "head.tied needs token vectors as wide as the model, or with entry.token_dim head.transform = true: "
                "set head.tied = false"
            )

    def head_width(self) -> int:
        """Width of the input of a language head's scores: the model's, or the entry's if a transform precedes them."""
        width = self.last()[1].entry.token_dim
        return width if width and getattr(self.head, "transform", False) else self.dim

    def stacks(self) -> dict[str, StackConfig]:
        """The stacks by name, in the order in which they run."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in stacks.items() if stack is not None}

    def last(self) -> tuple[str, StackConfig]:
        """Name and config of the last stack, the one under the head."""
        return list(self.stacks().items())[-1]

    def longest_text(self) -> int:
        """Maximum ids of a text in one pass: the context, or less if the embedding head has a `length`."""
        length = self.head.length if isinstance(self.head, EmbeddingHeadConfig) else None
        return min(self.context, length or self.context)

    def shallow(self) -> Self:
        """The model with one layer per stack, for measuring."""
        data = self.to_dict()
        for name, stack in self.stacks().items():
            data[name] |= {"depth": 1, "overrides": [], "final_norm": stack.ends_in_norm()}
        return type(self).of(data)

    def table_rows(self) -> int:
        """Rows of the token table: `vocab_size` rounded UP to a multiple of `pad_vocab_to` (D-13)."""
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def source_rows(self) -> int:
        """Rows of the encoder's token table, rounded the same way."""
        return -(-(self.source_vocab_size or self.vocab_size) // self.pad_vocab_to) * self.pad_vocab_to


def with_kernel(config: TransformerConfig, kernel: str) -> TransformerConfig:
    """The model with one attention kernel in all layers.

    Raises:
        HeddleError: the kernel does not exist, or cannot run a layer.
    """
    data = config.to_dict()
    for stack in (data[name] for name in config.stacks()):
        for block in (stack["block"], *[override["block"] for override in stack["overrides"]]):
            for place in ("mixer", "cross"):
                part = block.get(place)
                if isinstance(part, dict) and (part.get("kind") == "attention" or "kernel" in part):
                    part["kernel"] = kernel
    return TransformerConfig.of(data)
