"""The choices inside a layer, as data: norms, positions, mixers and feed-forwards. Each choice is a `kind`.

A size that is None is resolved by a method that takes the model's width; nothing is written back.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config, with_kind
from heddle.config.kernels import Drops, KernelName, Needs, refusal

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
# Factors, caps and standard deviations: beyond these bounds, values or gradients do not fit into fp32.
Positive = Annotated[float, Field(ge=1e-6, le=1e6)]
Weight = Annotated[float, Field(ge=0, le=1e6)]  # of a part of the loss
Epsilon = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(ge=1, le=1e6)]
Length = Annotated[int, Field(gt=0, le=2**31)]
Size = Annotated[int, Field(gt=0, le=2**22)]  # of a vector: beyond this, no memory holds a single matrix
Few = Annotated[int, Field(gt=0, le=2**16)]  # of heads, experts, taps
ActivationName = Literal[
    "gelu", "gelu_tanh", "quick_gelu", "relu", "relu6", "relu_squared", "leaky_relu", "silu", "mish", "sigmoid", "tanh",
    "linear",
]  # fmt: skip
Projection = Literal["q", "k", "v", "o"]


class LayerNormConfig(Config):
    """LayerNorm (L1-09). The defaults are torch's; the lectures' other definitions are options (D-04)."""

    kind: Literal["layer"] = "layer"
    eps: Epsilon = 1e-5  # 0 is deck 000's formula, which has no value for a constant row
    bias: bool = True  # the shift; nanoGPT's `bias=False` drops it
    unbiased: bool = False  # variance over dim - 1
    eps_outside: bool = False  # added to the deviation, not to the variance (The Annotated Transformer)


class RMSNormConfig(Config):
    """RMSNorm: no mean, no shift (L2-31, D-60)."""

    kind: Literal["rms"] = "rms"
    eps: Epsilon = 1e-6


class NoNormConfig(Config):
    """No norm at all: the identity, to show what norms are for (L2-30)."""

    kind: Literal["none"] = "none"


NormConfig = Annotated[LayerNormConfig | RMSNormConfig | NoNormConfig, Field(discriminator="kind")]


class LinearScaling(Config):
    """Positions divided by a factor (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Factor


class NTKScaling(Config):
    """A larger base instead of smaller positions: base · factor^(d / (d - 2))."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor


class YarnScaling(Config):
    """Interpolate low frequencies, keep high ones, blend between, and enlarge scores (Peng et al. 2023, 3.4)."""

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    original: Length  # context length at which the weights were trained
    fast: Positive = 32.0  # channels with more rotations than this over `original` are kept
    slow: Positive = 1.0  # channels with fewer rotations than this are interpolated
    whole: bool = True  # round both ends of the ramp outwards to whole channels, as in the authors' code
    magnitude: Positive | None = None  # factor on the lengths of the rotated vectors; None: 0.1 · ln(factor) + 1

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.fast <= self.slow:
            raise ValueError(f"fast = {self.fast:g} must be larger than slow = {self.slow:g}")
        return self


class Llama3Scaling(Config):
    """Llama 3.1's rule: divide low frequencies by the factor, keep high ones, blend linearly between."""

    kind: Literal["llama3"] = "llama3"
    factor: Factor
    original: Length
    low: Positive = 1.0
    high: Positive = 4.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.high <= self.low:
            raise ValueError(f"high = {self.high:g} must be larger than low = {self.low:g}")
        return self


class DynamicScaling(Config):
    """Dynamic NTK for texts of `length` tokens: the NTK rule with a factor that grows with the length.

    Hugging Face transformers computes the factor anew whenever the text grows, so a cached key there keeps angles that a pass
    over the whole text would not give it. Here one length holds for all texts, and a token's angles depend on its position.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Factor
    original: Length  # context length at which the weights were trained
    length: Length  # up to `original`, nothing changes

    def stretch(self) -> float:
        """The factor of the equivalent NTK rule."""
        return 1.0 if self.length <= self.original else self.factor * (self.length / self.original - 1) + 1


class LongRopeScaling(Config):
    """LongRoPE for texts of `length` tokens: a divisor for each pair's frequency (Ding et al. 2024, 3.1).

    Hugging Face transformers changes from `short` to `long` when a text grows beyond `original`, so a cached key there keeps
    angles that a pass over the whole text would not give it. Here one length decides for all texts.
    """

    kind: Literal["longrope"] = "longrope"
    short: tuple[Positive, ...]  # one for each pair of rotated channels
    long: tuple[Positive, ...]
    original: Length  # context length at which the weights were trained
    length: Length  # up to `original`, `short` is used, and `long` beyond
    magnitude: Positive = 1.0  # factor on the lengths of the rotated vectors

    def factors(self) -> tuple[float, ...]:
        """The divisors in use."""
        return self.long if self.length > self.original else self.short


Scaling = Annotated[
    LinearScaling | NTKScaling | YarnScaling | Llama3Scaling | DynamicScaling | LongRopeScaling,
    Field(discriminator="kind"),
]


class RotaryConfig(Config):
    """Rotary positions (Su et al. 2021): pairs of channels of queries and keys are rotated by their position.

    `halves` pairs channel i with i + d/2 (Llama's and GPT-NeoX's published weights), `neighbours` 2i with 2i + 1 (the paper).
    """

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    pairing: Literal["halves", "neighbours"] = "halves"
    # Share of the head's channels to rotate, from the first. Channels are rotated in pairs, so an odd number of them rotates
    # one channel more, at the angles of the odd number (as in Hugging Face transformers).
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    scaling: Scaling | None = None

    def rotated_dim(self, head_dim: int) -> int:
        """How many channels of a head are rotated; if this is odd, one more is."""
        return int(head_dim * self.fraction)


class AlibiConfig(Config):
    """Scores fall linearly with distance, with a fixed slope per head (Press et al. 2021)."""

    kind: Literal["alibi"] = "alibi"
    factor: Positive = 1.0  # on all slopes; 1/√d in Falcon


class BucketsConfig(Config):
    """A learned bias per head and bucket of distances (T5; Raffel et al. 2020, 2.1)."""

    kind: Literal["buckets"] = "buckets"
    buckets: Annotated[int, Field(ge=4, le=2**16)] = 32
    furthest: Length = 128  # all distances from here on share the last bucket
    shared: bool = True  # one table for all layers of a stack with equal settings here; false: one for each (UMT5)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.furthest <= self.buckets // 2:
            raise ValueError(f"furthest = {self.furthest} must be larger than half of buckets = {self.buckets}")
        return self


Relative = Annotated[RotaryConfig | AlibiConfig | BucketsConfig, Field(discriminator="kind")]


class DropoutConfig(Config):
    """The dropout convention, for every rate in the model (D-03, D-54)."""

    # inverted: training divides kept values by 1 - rate; classic: prediction multiplies by it.
    style: Literal["inverted", "classic"] = "inverted"
    mask: Literal["element", "batch"] = "element"  # a mask per value, or one mask for all rows of a batch


class AttentionConfig(Config):
    """Multi-head attention; fewer `kv_heads` than `heads` makes it grouped-query, one makes it multi-query."""

    kind: Literal["attention"] = "attention"
    heads: Few
    kv_heads: Few | None = None  # None: as many as heads
    head_dim: Size | None = None  # None: dim / heads. Free, so W_Q W_K^T may have low rank (L0-35)
    value_dim: Size | None = None  # width of a value head; None: head_dim
    scale: Literal["head_dim", "dim"] | Positive = "head_dim"  # divide scores by its root, or multiply by a number
    bias: bool | tuple[Projection, ...] = True  # all four projections, none, or those named
    qk_norm: NormConfig | None = None  # a norm over queries and one over keys, before the rotation
    qk_norm_over: Literal["head", "all"] = (
        "head"  # over each head (Qwen3), or over all heads of a token at once (OLMo 2)
    )
    cap: Positive | None = None  # scores become cap · tanh(scores / cap) (Gemma 2)
    window: Size | None = None  # a token sees itself and the window - 1 before it; in an encoder as many after it
    relative: Relative | None = None
    dropout: Rate = 0.0  # on the attention weights
    kernel: KernelName = "auto"

    @model_validator(mode="before")
    @classmethod
    def _plain_positions(cls, data: Any) -> Any:
        """`relative = {base = 500000}` means rotary positions."""
        return with_kind(data, "relative", "rotary")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        if self.qk_norm is None and self.qk_norm_over != "head":
            raise ValueError("qk_norm_over belongs to qk_norm: set qk_norm, or leave it out")
        if isinstance(self.bias, tuple) and len(set(self.bias)) < len(self.bias):
            raise ValueError(f"bias names a projection twice: {', '.join(self.bias)}")
        if (why := refusal(self.kernel, self.needs())) is not None:
            raise ValueError(why)
        return self

    def needs(self, dropout: DropoutConfig | None = None, training: bool = True) -> Needs:
        """What the kernel must support in training or in prediction, with the model's dropout convention."""
        how = DropoutConfig() if dropout is None else dropout
        drops: Drops = "none"
        if self.dropout and (training or how.style == "classic"):
            drops = "inverted" if how == DropoutConfig() else "any"
        return Needs(self.cap is not None, drops)

    def key_heads(self) -> int:
        """Number of key and value heads, K."""
        return self.kv_heads or self.heads

    def width(self, dim: int) -> int:
        """Head width d, for a model of width `dim` (L0-43)."""
        return self.head_dim or dim // self.heads

    def biased(self) -> tuple[Projection, ...]:
        """The projections that have a bias."""
        if isinstance(self.bias, tuple):
            return self.bias
        return ("q", "k", "v", "o") if self.bias else ()


class ConvolutionConfig(Config):
    """Causal convolution over the tokens: y_t = Σ_k x_{t - k·dilation} W_k (L0-05); centred in an encoder."""

    kind: Literal["convolution"] = "convolution"
    taps: Annotated[int, Field(gt=0, le=1024)] = 3  # how many tokens to combine, including the token itself
    dilation: Annotated[int, Field(gt=0, le=2**16)] = 1
    bias: bool = True


class LinearConfig(Config):
    """A linear function of the last `taps` tokens (L0-03): a convolution with dilation 1 and no bias."""

    kind: Literal["linear"] = "linear"
    taps: Annotated[int, Field(gt=0, le=1024)] = 8
    dilation: ClassVar[int] = 1
    bias: ClassVar[bool] = False


class RecurrentConfig(Config):
    """A recurrent network over the tokens: a latent state instead of looking back (L1-74)."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["gru", "lstm"] = "gru"
    hidden: Size | None = None  # width of the state; None: dim
    bias: bool = True

    def width(self, dim: int) -> int:
        """Width of the latent state."""
        return self.hidden or dim


class CustomConfig(Config):
    """A user's own module: `target = "my.module:MyMixer"` is called as MyMixer(dim, **options) (L0-07)."""

    kind: Literal["custom"] = "custom"
    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)


MixerConfig = Annotated[
    AttentionConfig | ConvolutionConfig | LinearConfig | RecurrentConfig | CustomConfig, Field(discriminator="kind")
]


class MLPConfig(Config):
    """Two linear maps around an activation: down(act(up(x))) (L0-67, L1-20)."""

    kind: Literal["mlp"] = "mlp"
    hidden: Size | None = None  # None: 4 x dim (L1-17)
    activation: ActivationName = "gelu"
    bias: bool = True
    dropout: Rate = 0.0  # after the activation

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width `dim`."""
        return self.hidden or 4 * dim


class GatedConfig(Config):
    """Gated feed-forward: down(act(gate(x)) * up(x)) (L1-21; Shazeer 2020: SwiGLU with silu, GEGLU with gelu)."""

    kind: Literal["gated"] = "gated"
    hidden: Size | None = None  # None: 8/3 x dim rounded up to a multiple of 256 (D-55)
    activation: ActivationName = "silu"
    bias: bool = False
    dropout: Rate = 0.0  # on the product

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width `dim`: 4096 gives 11,008, as in Llama."""
        return self.hidden or -(-8 * dim // 768) * 256


class NoFeedForwardConfig(Config):
    """No feed-forward: the block has only a mixer."""

    kind: Literal["none"] = "none"


class MoEConfig(Config):
    """Mixture of experts: a router sends each token through `active` of `experts` feed-forwards (L2-67 … L2-76).

    The lecture's gates are the softmax over all experts, of which the largest are kept unchanged; `renormalise` makes the
    kept ones sum to 1 (Mixtral, Qwen3; D-21).
    """

    kind: Literal["moe"] = "moe"
    experts: Annotated[int, Field(gt=0, le=4096)]
    active: Annotated[int, Field(gt=0, le=4096)] = 2
    expert: Annotated[MLPConfig | GatedConfig, Field(discriminator="kind")] = GatedConfig()
    shared: Annotated[int, Field(ge=0, le=64)] = (
        0  # experts that process every token, in addition to the routed ones (L2-75)
    )
    shared_hidden: Size | None = None  # width of one shared expert; None: that of a routed one
    shared_gate: bool = False  # their sum times sigmoid of a learned number per token (Qwen2-MoE)
    gate: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = False
    scale: Positive = 1.0  # factor on the routed sum
    skip: Literal["block", "internal"] = (
        "block"  # internal: the slide's u + ..., in place of the block's residual (D-22)
    )
    balance: Weight = 0.0  # weight of the balance loss, per document (D-59)
    z: Weight = 0.0  # weight of the router's z-loss (Zoph et al. 2022, eq. 5)
    bias_rate: Weight = 0.0  # step of loss-free balancing (Wang et al. 2024); 0: off
    dispatch: Literal["grouped", "loop"] = "grouped"  # how tokens reach their experts; the loop is the reference

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.active > self.experts:
            raise ValueError(f"active = {self.active} must be at most experts = {self.experts}")
        if self.expert.dropout:
            raise ValueError("experts have no dropout: leave it out; the block's dropout acts on their sum")
        if not self.shared and (self.shared_gate or self.shared_hidden):
            raise ValueError(
                "shared_gate and shared_hidden belong to shared experts, but shared = 0: set shared, or leave them out"
            )
        return self

    def width(self, dim: int) -> int:
        """Hidden width F of one routed expert."""
        return self.expert.width(dim)

    def shared_width(self, dim: int) -> int:
        """Hidden width of one shared expert."""
        return self.shared_hidden or self.expert.width(dim)


FeedForwardConfig = Annotated[
    MLPConfig | GatedConfig | MoEConfig | NoFeedForwardConfig | CustomConfig, Field(discriminator="kind")
]
