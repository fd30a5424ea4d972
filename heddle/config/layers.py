"""The choices inside a layer, as data: norms, positions, mixers and feed-forwards. Each choice is a `kind`.

A size that is None is resolved by a method that takes the model's width; nothing is written back.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config, with_kind
from heddle.config.kernels import Drops, KernelName, Needs, refusal
from heddle.config.positions import Relative, RotaryConfig
from heddle.config.sizes import Epsilon, Few, Positive, Rate, Size, Weight

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
    """The identity instead of a norm, to show the effect of norms (L2-30)."""

    kind: Literal["none"] = "none"


NormConfig = Annotated[LayerNormConfig | RMSNormConfig | NoNormConfig, Field(discriminator="kind")]


class DropoutConfig(Config):
    """The dropout convention, for every rate in the model (D-03, D-54)."""

    # inverted: training divides kept values by 1 - rate; classic: inference multiplies by it.
    style: Literal["inverted", "classic"] = "inverted"
    mask: Literal["element", "batch"] = "element"  # a mask per value, or one mask for all rows of a batch


def drops_of(rate: float, dropout: DropoutConfig | None, training: bool) -> Drops:
    """The dropout that a kernel must support, given the rate, the convention, and training or inference."""
    convention = DropoutConfig() if dropout is None else dropout
    if not rate or not (training or convention.style == "classic"):
        return "none"
    return "inverted" if convention == DropoutConfig() else "any"


Target = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Options = dict[str, bool | int | float | str]


class ScoresConfig(Config):
    """A user's modification of attention scores: `target = "my.module:MyScores"` is called as MyScores(heads, **options)."""

    target: Target
    options: Options = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.target, *sorted(self.options.items())))


class AttentionConfig(Config):
    """Multi-head attention; fewer `kv_heads` than `heads` makes it grouped-query, one makes it multi-query."""

    kind: Literal["attention"] = "attention"
    heads: Few
    kv_heads: Few | None = None  # None: as many as heads
    head_dim: Size | None = None  # None: dim / heads. Free, so W_Q W_K^T may have low rank (L0-35)
    value_dim: Size | None = None  # width of a value head; None: head_dim
    scale: Literal["head_dim", "dim"] | Positive = "head_dim"  # divide scores by its root, or multiply by a number
    bias: bool | tuple[Projection, ...] = True  # all four projections, none, or the named ones
    qk_norm: NormConfig | None = None  # a norm over queries and one over keys, before the rotation
    qk_norm_over: Literal["head", "all"] = (
        "head"  # over each head (Qwen3), or over all heads of a token at once (OLMo 2)
    )
    cap: Positive | None = None  # scores become cap · tanh(scores / cap) (Gemma 2)
    window: Size | None = None  # a token sees itself and the window - 1 before it; in an encoder as many after it
    relative: Relative | None = None
    sinks: bool = (
        False  # a learned score per head joins every softmax, so a query's weights sum to less than 1 (gpt-oss)
    )
    scores: ScoresConfig | None = None  # a user's module that changes the scores before mask and softmax
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
        """The features that the kernel must support in training or inference, with the model's dropout convention."""
        drops = drops_of(self.dropout, dropout, training)
        return Needs(self.cap is not None, drops, self.scores is not None, self.sinks)

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


class LatentConfig(Config):
    """Multi-head latent attention (DeepSeek-AI 2024, 2.1): keys and values come from one narrow vector per token, the only one
    that is cached. Positions rotate separate channels, whose key all heads share."""

    kind: Literal["latent"] = "latent"
    heads: Few
    rank: Size  # width of the vector that keys and values are computed from
    q_rank: Size | None = None  # the same for queries; None: they are computed from the hidden vector
    head_dim: Size  # channels of a head's query and key without positions
    rotary_dim: Size  # channels of a head's query and key that rotate
    value_dim: Size | None = None  # width of a value head; None: head_dim
    relative: RotaryConfig = RotaryConfig(pairing="neighbours")
    scale: Literal["head_dim"] | Positive = (
        "head_dim"  # divide scores by the root of both widths' sum, or multiply by a number
    )
    bias: bool = False  # in the projections to narrow vectors and in the output's
    eps: Epsilon = 1e-6  # of the norms of narrow vectors
    dropout: Rate = 0.0  # on the attention weights
    kernel: KernelName = "auto"
    window: ClassVar[None] = None
    cap: ClassVar[None] = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        rotated = self.relative.rotated_dim(self.rotary_dim)
        if not rotated or (rotated % 2 and rotated == self.rotary_dim):
            raise ValueError(
                f"rotary positions rotate pairs of channels, and rotary_dim = {self.rotary_dim} has no room for them"
            )
        if (why := refusal(self.kernel, self.needs())) is not None:
            raise ValueError(why)
        return self

    def needs(self, dropout: DropoutConfig | None = None, training: bool = True) -> Needs:
        """The features that the kernel must support in training or inference, with the model's dropout convention."""
        return Needs(False, drops_of(self.dropout, dropout, training))

    def width(self, dim: int) -> int:
        """Width of a head's query and key, positions included."""
        return self.head_dim + self.rotary_dim


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
    """A recurrent network over the tokens, with a latent state (L1-74)."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["gru", "lstm"] = "gru"
    hidden: Size | None = None  # width of the state; None: dim
    bias: bool = True

    def width(self, dim: int) -> int:
        """Width of the latent state."""
        return self.hidden or dim


class CustomConfig(Config):
    """A user's module: `target = "my.module:MyMixer"` is called as MyMixer(dim, **options) (L0-07)."""

    kind: Literal["custom"] = "custom"
    target: Target
    options: Options = Field(default_factory=dict)


MixerConfig = Annotated[
    AttentionConfig | LatentConfig | ConvolutionConfig | LinearConfig | RecurrentConfig | CustomConfig,
    Field(discriminator="kind"),
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
    limit: Positive | None = None  # act sees at most this, and the other factor stays within ± this (gpt-oss)
    plus_one: bool = False  # the other factor is up(x) + 1 (gpt-oss)
    dropout: Rate = 0.0  # on the product

    def width(self, dim: int) -> int:
        """Hidden width F for a model of width `dim`: 4096 gives 11,008, as in Llama."""
        return self.hidden or -(-8 * dim // 768) * 256


class NoFeedForwardConfig(Config):
    """No feed-forward: the block has only a mixer."""

    kind: Literal["none"] = "none"


class GroupsConfig(Config):
    """Groups of neighbouring experts: a token chooses its experts only from the best groups (DeepSeek-V2 and V3)."""

    count: Annotated[int, Field(ge=2, le=4096)]
    active: Few = 1  # how many groups a token chooses from
    by: Literal["best", "two"] = "best"  # a group's score: its best gate (V2), or the sum of its best two (V3)


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
    shared_gate: bool = False  # scale their sum by the sigmoid of a learned projection of each token (Qwen2-MoE)
    router_bias: bool = False  # a learned number per expert is added to its score (gpt-oss)
    gate: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = False
    scale: Positive = 1.0  # factor on the routed sum
    groups: GroupsConfig | None = None
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
        if self.groups is not None:
            self._groups_possible(self.groups)
        if self.expert.dropout:
            raise ValueError("experts have no dropout: leave it out; the block's dropout acts on their sum")
        if not self.shared and (self.shared_gate or self.shared_hidden):
            raise ValueError(
                "shared_gate and shared_hidden belong to shared experts, but shared = 0: set shared, or leave them out"
            )
        return self

    def _groups_possible(self, groups: GroupsConfig) -> None:
        group_size = self.experts // groups.count
        if self.experts % groups.count or groups.active > groups.count or self.active > groups.active * group_size:
            raise ValueError(
                f"active = {self.active} of experts = {self.experts} cannot come from groups.active = {groups.active} of "
                f"groups.count = {groups.count}, which must be equally large"
            )
        if groups.by == "two" and group_size < 2:
            raise ValueError(f"groups.by = 'two' needs two experts in each of groups.count = {groups.count}")

    def width(self, dim: int) -> int:
        """Hidden width F of one routed expert."""
        return self.expert.width(dim)

    def shared_width(self, dim: int) -> int:
        """Hidden width of one shared expert."""
        return self.shared_hidden or self.expert.width(dim)


FeedForwardConfig = Annotated[
    MLPConfig | GatedConfig | MoEConfig | NoFeedForwardConfig | CustomConfig, Field(discriminator="kind")
]
