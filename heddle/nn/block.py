"""A block: residuals around branches. A new wiring is a new class; everything else is a row in a table."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.layers import (
    AttentionConfig,
    ConvolutionConfig,
    CustomConfig,
    GatedConfig,
    LinearConfig,
    MLPConfig,
    MoEConfig,
    RecurrentConfig,
)
from heddle.config.model import BlockConfig, DropoutConfig
from heddle.errors import HeddleError
from heddle.nn.attention import Attention, View
from heddle.nn.convolution import Convolution
from heddle.nn.custom import CustomFeedForward, CustomMixer
from heddle.nn.dropout import Dropout, make_dropout
from heddle.nn.experts import Experts
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.moe import MoE, Routing
from heddle.nn.norm import make_norm
from heddle.nn.recurrent import Recurrent
from heddle.nn.state import STATELESS, State

MATRICES = (nn.Linear, Convolution, Experts)
"""The modules whose weights are computed with in a model's working precision; everything else stays in fp32."""


@dataclass(frozen=True)
class Placement:
    """Where a residual's norms stand, and from where its skip starts: `x`, `normed` behind the first norm, or None at all."""

    before: bool = False
    after: bool = False
    outside: bool = False
    skip: str | None = "x"


PLACEMENT = {
    "pre": Placement(before=True),  # L2-35
    "post": Placement(outside=True),  # L2-24
    "sandwich": Placement(before=True, after=True),
    "output": Placement(after=True),
    "literal": Placement(before=True, skip="normed"),  # deck 000, equations (4) and (5) (L0-27, D-01)
    "bare": Placement(before=True, skip=None),  # no residual, to show what it is for (L0-53)
    "none": Placement(),  # a residual whose norm stands elsewhere
}


class Residual(nn.Module):
    """x + dropout(branch(x)), with norms where the placement says (L0-53; D-01: the skip starts from the un-normed x).

    Raises:
        HeddleError: the branch gives another shape (L0-56).
    """

    def __init__(self, placement: str, norm: Callable[[], nn.Module], dropout: float | Dropout = 0.0) -> None:
        super().__init__()
        where = PLACEMENT[placement]
        self.skip = where.skip
        self.before = norm() if where.before else nn.Identity()
        self.after = norm() if where.after else nn.Identity()
        self.outside = norm() if where.outside else nn.Identity()
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"], branch: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        normed = self.before(x)
        change = branch(normed)
        if change.shape != x.shape:
            raise HeddleError(
                "a residual adds what comes out to what went in, "
                f"but {list(change.shape)} came out where {list(x.shape)} went in"
            )
        change = self.dropout(self.after(change))
        if self.skip is None:
            return self.outside(change)
        return self.outside((x if self.skip == "x" else normed) + change)


@dataclass(frozen=True)
class Across:
    """What a block's cross-attention looks at: the encoder's output, how it is seen, and what is remembered of it."""

    hidden: Float[Tensor, "B S D"]
    view: View
    state: State = STATELESS


class Block(nn.Module):
    """x = x + mixer(norm(x)); x = x + ffn(norm(x)), in the placement the config names (L2-35; golden `block_pre_norm`).

    In a decoder beside an encoder, cross-attention stands between the two (golden `block_decoder_cross`).
    """

    def __init__(self, config: BlockConfig, dim: int, drops: DropoutConfig | None = None, causal: bool = True) -> None:
        super().__init__()
        make = Maker(dim, DropoutConfig() if drops is None else drops, causal)

        def residual(placement: str) -> Residual:
            return Residual(placement, lambda: make_norm(config.norm, dim), make.dropout(config.dropout))

        placement: str = config.placement
        # Deck 000 overwrites the stream by its norm in equation (4) only: its first skip starts from x, as usual (D-01).
        first = "pre" if placement == "literal" else placement
        self.mixer_residual = residual(first)
        self.mixer = make.mixer(config.mixer)
        self.cross_residual = None if config.cross is None else residual(first)
        self.cross = None if config.cross is None else make.attention(config.cross, crosses=True)
        if isinstance(config.ffn, MoEConfig) and config.ffn.skip == "internal":
            placement = "literal"  # the slide's u + ..., u being what stands behind the norm (D-22)
        if config.wiring == "parallel_one_norm":
            placement = "none"
        self.ffn = make.feed_forward(config.ffn)
        self.ffn_residual = None if self.ffn is None else residual(placement)

    def forward(
        self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS, across: Across | None = None
    ) -> tuple[Float[Tensor, "B T D"], Routing | None]:
        """The tokens after this layer, and what its router did, if it has one."""
        x = self.mixer_residual(x, lambda h: self.mixer(h, view, state))
        if self.cross is not None and self.cross_residual is not None and across is not None:
            cross = self.cross
            x = self.cross_residual(x, lambda h: cross(h, across.view, across.state, across.hidden))
        if self.ffn is None or self.ffn_residual is None:
            return x, None
        feed = Fed(self.ffn, view)
        return self.ffn_residual(x, feed), feed.routing

    def new_state(self) -> tuple[State, State]:
        """Empty memories of the mixer and of cross-attention."""
        return self.mixer.new_state(), STATELESS if self.cross is None else self.cross.new_state()


class ParallelBlock(Block):
    """x + mixer(norm(x)) + ffn(norm'(x)): one sum instead of two (GPT-NeoX, Falcon), with one norm for both or one for each."""

    def __init__(self, config: BlockConfig, dim: int, drops: DropoutConfig | None = None, causal: bool = True) -> None:
        super().__init__(config, dim, drops, causal)
        self.one_norm = config.wiring == "parallel_one_norm"

    def forward(
        self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS, across: Across | None = None
    ) -> tuple[Float[Tensor, "B T D"], Routing | None]:
        assert self.ffn is not None
        assert self.ffn_residual is not None
        normed = self.mixer_residual.before(x)
        feed = Fed(self.ffn, view)
        change = self.mixer_residual.dropout(self.mixer(normed, view, state))
        fed = feed(normed if self.one_norm else self.ffn_residual.before(x))
        return x + change + self.ffn_residual.dropout(fed), feed.routing


class Fed:
    """One call of a feed-forward as a plain branch; what a router did is kept beside it."""

    def __init__(self, ffn: nn.Module, view: View) -> None:
        self.ffn = ffn
        self.view = view
        self.routing: Routing | None = None

    def __call__(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not isinstance(self.ffn, MoE):
            out: Tensor = self.ffn(x)
            return out
        out, self.routing = self.ffn(x, self.view.queries)
        return out


class Maker:
    """Modules from configs, for a model of width `dim`: one method per kind, one row per kind below."""

    def __init__(self, dim: int, drops: DropoutConfig, causal: bool) -> None:
        self.dim = dim
        self.drops = drops
        self.causal = causal

    def dropout(self, rate: float) -> Dropout:
        """Dropout in the model's convention."""
        return make_dropout(self.drops, rate)

    def mixer(self, config: Any) -> Any:
        """The mixer a config describes."""
        return MIXERS[type(config)](self, config)

    def feed_forward(self, config: Any) -> nn.Module | None:
        """The feed-forward a config describes; None where there is none."""
        make = FEED_FORWARDS.get(type(config))
        return None if make is None else make(self, config)

    def attention(self, config: AttentionConfig, crosses: bool = False) -> Attention:
        dim, head_dim = self.dim, config.width(self.dim)
        scales = {"head_dim": 1 / sqrt(head_dim), "dim": 1 / sqrt(dim)}
        qk_norm = config.qk_norm
        query_norm, key_norm = (None if qk_norm is None else make_norm(qk_norm, head_dim) for _ in range(2))
        return Attention(
            dim,
            config.heads,
            config.key_heads(),
            head_dim,
            config.value_dim or head_dim,
            scales[config.scale] if isinstance(config.scale, str) else config.scale,
            config.biased(),
            query_norm,
            key_norm,
            dropout=self.dropout(config.dropout),
            kernel=config.kernel,
            cap=config.cap,
            window=config.window,
            crosses=crosses,
        )

    def convolution(self, config: ConvolutionConfig) -> Convolution:
        return Convolution(self.dim, config.taps, config.dilation, config.bias, centred=not self.causal)

    def linear(self, config: LinearConfig) -> Convolution:
        return Convolution(self.dim, config.taps, 1, False, centred=not self.causal)

    def recurrent(self, config: RecurrentConfig) -> Recurrent:
        return Recurrent(self.dim, config.width(self.dim), config.cell, config.bias)

    def custom_mixer(self, config: CustomConfig) -> CustomMixer:
        return CustomMixer(config, self.dim)

    def custom_feed_forward(self, config: CustomConfig) -> CustomFeedForward:
        return CustomFeedForward(config, self.dim)

    def mlp(self, config: MLPConfig) -> MLP:
        return MLP(self.dim, config.width(self.dim), config.activation, config.bias, self.dropout(config.dropout))

    def gated(self, config: GatedConfig) -> Gated:
        return Gated(self.dim, config.width(self.dim), config.activation, config.bias, self.dropout(config.dropout))

    def moe(self, config: MoEConfig) -> MoE:
        return MoE(
            self.dim,
            config.width(self.dim),
            config.experts,
            config.active,
            config.expert.activation,
            gated=isinstance(config.expert, GatedConfig),
            bias=config.expert.bias,
            shared=config.shared,
            shared_hidden=config.shared_width(self.dim),
            shared_gate=config.shared_gate,
            gate=config.gate,
            renormalise=config.renormalise,
            scale=config.scale,
            balance=config.balance,
            z=config.z,
            balanced=config.bias_rate > 0,
            dispatch=config.dispatch,
        )


# One row per choice. To add one: a config class with its `kind`, a module, a row; it then inherits every law.
MIXERS: dict[type, Callable[[Maker, Any], nn.Module]] = {
    AttentionConfig: Maker.attention,
    ConvolutionConfig: Maker.convolution,
    LinearConfig: Maker.linear,
    RecurrentConfig: Maker.recurrent,
    CustomConfig: Maker.custom_mixer,
}
FEED_FORWARDS: dict[type, Callable[[Maker, Any], nn.Module]] = {
    MLPConfig: Maker.mlp,
    GatedConfig: Maker.gated,
    MoEConfig: Maker.moe,
    CustomConfig: Maker.custom_feed_forward,
}
WIRINGS: dict[str, type[Block]] = {"serial": Block, "parallel": ParallelBlock, "parallel_one_norm": ParallelBlock}


def make_block(config: BlockConfig, dim: int, drops: DropoutConfig | None = None, causal: bool = True) -> Block:
    """The block a config describes."""
    return WIRINGS[config.wiring](config, dim, drops, causal)


def make_attention(config: AttentionConfig, dim: int) -> Attention:
    """The attention a config describes, on its own."""
    return Maker(dim, DropoutConfig(), True).attention(config)
