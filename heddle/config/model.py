"""What a transformer is, as data: which stacks are present and, for every layer, which mixer, feed-forward and norm.

Read this first: it is the whole vocabulary of the project. Nothing here imports torch. Sizes a config leaves open
(`kv_heads`, `head_dim`, `hidden`, `final_norm`) are resolved by the properties below, never written back.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from heddle.config.base import Config

MOST_NUMBERS = 10**15  # weights of a model: no machine holds more, and below it bytes are counted safely in 64 bits
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Depth = Annotated[int, Field(gt=0, le=10_000)]
ActivationName = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"]
KernelName = Literal["auto", "reference", "plain", "sdpa"]


class LayerNormConfig(Config):
    """LayerNorm with biased variance and eps inside the root (L1-09, D-04)."""

    kind: Literal["layer"] = "layer"
    eps: Annotated[float, Field(gt=0)] = 1e-5
    bias: bool = True  # the shift; nanoGPT's `bias=False` drops it


class RMSNormConfig(Config):
    """RMSNorm: no mean, no shift (L2-31, D-60)."""

    kind: Literal["rms"] = "rms"
    eps: Annotated[float, Field(gt=0)] = 1e-6


NormConfig = Annotated[LayerNormConfig | RMSNormConfig, Field(discriminator="kind")]


class RotaryConfig(Config):
    """Rotary positions: channel i is paired with channel i + d/2 (Su et al. 2021; the pairing of Llama's published weights)."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=0)] = 10_000.0


class AttentionConfig(Config):
    """Multi-head attention; fewer `kv_heads` than `heads` makes it grouped-query, one makes it multi-query."""

    kind: Literal["attention"] = "attention"
    heads: PositiveInt
    kv_heads: PositiveInt | None = None  # None: as many as heads
    head_dim: PositiveInt | None = None  # None: dim / heads. Free, so W_Q W_K^T may have low rank (L0-35)
    value_dim: PositiveInt | None = None  # width of a value head; None: head_dim
    scale: Literal["head_dim", "dim"] | Annotated[float, Field(gt=0)] = (
        "head_dim"  # scores are divided by its root; a number multiplies
    )
    bias: bool = True
    qk_norm: NormConfig | None = None  # a norm over each query and key head before the rotation (Qwen3)
    relative: RotaryConfig | None = None
    dropout: Rate = 0.0  # on the attention weights
    kernel: KernelName = "auto"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        return self

    def key_heads(self) -> int:
        """Number of key and value heads, K."""
        return self.kv_heads or self.heads

    def width(self, dim: int) -> int:
        """Head width d, for a model of width `dim` (L0-43)."""
        return self.head_dim or dim // self.heads


class MLPConfig(Config):
    """Two linear maps around an activation: down(act(up(x))) (L0-67, L1-20)."""

    kind: Literal["mlp"] = "mlp"
    hidden: PositiveInt | None = None  # None: 4 x dim (L1-17)
    activation: ActivationName = "gelu"
    bias: bool = True

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width `dim`."""
        return self.hidden or 4 * dim


class GatedConfig(Config):
    """Gated feed-forward: down(act(gate(x)) * up(x)) (L1-21; Shazeer 2020: SwiGLU with silu, GEGLU with gelu)."""

    kind: Literal["gated"] = "gated"
    hidden: PositiveInt | None = None  # None: 8/3 x dim rounded up to a multiple of 256 (D-55)
    activation: ActivationName = "silu"
    bias: bool = False

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width `dim`: 4096 gives 11,008, as in Llama."""
        return self.hidden or -(-8 * dim // 768) * 256


FeedForwardConfig = Annotated[MLPConfig | GatedConfig, Field(discriminator="kind")]


class BlockConfig(Config):
    """One layer: a mixer and a feed-forward, each inside a residual."""

    mixer: AttentionConfig
    ffn: FeedForwardConfig = MLPConfig()
    norm: NormConfig = LayerNormConfig()
    placement: Literal["pre", "post"] = "pre"  # where the norm stands (L2-35, L2-24)
    dropout: Rate = 0.0  # on each branch's output, before the sum (L0-29)


class EntryConfig(Config):
    """What happens to token embeddings before the first block."""

    positions: Literal["learned", "none"] = "none"  # absolute positions; rotary ones live in the mixer
    dropout: Rate = 0.0


class StackConfig(Config):
    """`depth` equal blocks between an entry and an optional final norm."""

    depth: Depth
    block: BlockConfig
    entry: EntryConfig = EntryConfig()
    final_norm: bool | None = None  # None: exactly when the norm stands before the branch (D-06)

    def ends_in_norm(self) -> bool:
        """Whether a norm stands between the last block and the head."""
        return self.block.placement == "pre" if self.final_norm is None else self.final_norm


class HeadConfig(Config):
    """The language-model head: logits = hidden @ E^T, with E the token table when tied (D-25, L0-75). It has no bias (D-26)."""

    tied: bool = True


class InitialConfig(Config):
    """Initial weights: normal with `std`, residual outputs smaller by the root of the 2 x depth branches (L0-13, D-45)."""

    std: Annotated[float, Field(gt=0)] = 0.02
    scale_residual: bool = True


class TransformerConfig(Config):
    """A whole model. The family is which stacks are present: a decoder alone is a causal language model."""

    vocab_size: PositiveInt
    pad_vocab_to: PositiveInt = (
        1  # the table's rows are rounded up to a multiple of this; extra entries are masked (L0-86)
    )
    dim: PositiveInt
    context: PositiveInt  # longest sequence in training; a hard limit with learned positions
    decoder: StackConfig
    head: HeadConfig = HeadConfig()
    initial: InitialConfig = InitialConfig()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        mixer = self.decoder.block.mixer
        if self._numbers() > MOST_NUMBERS:
            raise ValueError("these sizes make more weights than any machine can hold")
        if mixer.head_dim is None and self.dim % mixer.heads:
            raise ValueError(
                f"dim = {self.dim} is not divisible by heads = {mixer.heads} ({self.dim / mixer.heads:g} is not whole); "
                "give head_dim or change one of them"
            )
        if mixer.relative is not None and mixer.width(self.dim) % 2:
            raise ValueError(f"rotary positions turn pairs of channels; head_dim = {mixer.width(self.dim)} is odd")
        return self

    def _numbers(self) -> int:
        """About how many weights there are: the tables and the matrices."""
        block, width = self.decoder.block, self.decoder.block.mixer.width(self.dim)
        value = block.mixer.value_dim or width
        heads = (block.mixer.heads + block.mixer.key_heads()) * (width + value)
        layer = self.dim * (heads + 2 * block.ffn.width(self.dim))
        positions = self.context if self.decoder.entry.positions == "learned" else 0
        return self.decoder.depth * layer + (self.table_rows() + positions) * self.dim

    def table_rows(self) -> int:
        """Rows of the token table: `vocab_size` rounded UP to a multiple of `pad_vocab_to` (D-13)."""
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to
