"""A block: residuals around branches. A new wiring is a new class; any other choice is a row in a table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config import layers
from heddle.config.model import BlockConfig
from heddle.errors import HeddleError
from heddle.nn.attention import Attention
from heddle.nn.convolution import Convolution
from heddle.nn.custom import CustomFeedForward, CustomMixer
from heddle.nn.dropout import Dropout
from heddle.nn.experts import Experts
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.latent import Latent
from heddle.nn.moe import MoE
from heddle.nn.norm import make_norm
from heddle.nn.output import Hidden, Output
from heddle.nn.recurrent import Recurrent
from heddle.nn.scope import Scope
from heddle.nn.setting import Setting
from heddle.nn.state import FORGETS, STATELESS, BlockState, empty_state

MATRICES = (nn.Linear, Convolution, Experts)
"""The modules whose weights are cast to the working precision; everything else stays in fp32."""

# Config class -> module class. To add a choice, add a config class with a `kind`, a module and a row; every law then covers it.
MIXERS: dict[type, Callable[[Any, Setting], nn.Module]] = {
    layers.AttentionConfig: Attention,
    layers.LatentConfig: Latent,
    layers.ConvolutionConfig: Convolution,
    layers.LinearConfig: Convolution,
    layers.RecurrentConfig: Recurrent,
    layers.CustomConfig: CustomMixer,
}
FEED_FORWARDS: dict[type, Callable[[Any, Setting], nn.Module]] = {
    layers.MLPConfig: MLP,
    layers.GatedConfig: Gated,
    layers.MoEConfig: MoE,
    layers.CustomConfig: CustomFeedForward,
}


@dataclass(frozen=True)
class Placement:
    """The norms of a residual, and the start of its skip: `x`, the output of the first norm (`normed`), or None for no skip."""

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
    "bare": Placement(before=True, skip=None),  # no residual, to show its effect (L0-53)
    "none": Placement(),  # a residual without a norm
}


class Residual(nn.Module):
    """x + dropout(scale · branch(x)), with norms where the placement has them (L0-53; D-01: the skip starts from the un-normed x).

    A block calls `enter` to get the branch's input and `leave` with the branch's output.
    """

    def __init__(
        self, placement: str, norm: Callable[[], nn.Module], dropout: float | Dropout = 0.0, scale: float = 1.0
    ) -> None:
        super().__init__()
        norms = PLACEMENT[placement]
        self.skip, self.scale = norms.skip, scale
        self.before = norm() if norms.before else nn.Identity()
        self.after = norm() if norms.after else nn.Identity()
        self.outside = norm() if norms.outside else nn.Identity()
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)

    def enter(self, x: Hidden) -> Hidden:
        """The branch's input."""
        return self.before(x)

    def leave(self, x: Hidden, entered: Hidden, change: Float[Tensor, "..."]) -> Hidden:
        """The residual's output.

        Args:
            x: the residual's input.
            entered: what `enter` returned for `x`.
            change: the branch's output for `entered`.

        Raises:
            HeddleError: the branch changed the shape (L0-56).
        """
        if change.shape != x.shape:
            raise HeddleError(
                f"a branch's output is added to its input, so its shape must be {list(x.shape)}, not {list(change.shape)}"
            )
        change = self.dropout(self.scaled(self.after(change)))
        if self.skip is not None:
            change = (x if self.skip == "x" else entered) + change
        return self.outside(change)

    def scaled(self, change: Tensor) -> Tensor:
        """The branch's output times its factor."""
        return change if self.scale == 1.0 else change * self.scale


class Block(nn.Module):
    """x = x + mixer(norm(x)); x = x + ffn(norm(x)), with norms placed as configured (L2-35; golden `block_pre_norm`).

    In the decoder of an encoder-decoder, cross-attention comes between the two (golden `block_decoder_cross`).
    """

    def __init__(self, config: BlockConfig, setting: Setting) -> None:
        super().__init__()

        def residual(placement: str) -> Residual:
            dropout, scale = setting.drop(config.dropout), config.branch_scale
            return Residual(placement, lambda: make_norm(config.norm, setting.dim), dropout, scale)

        # Deck 000 replaces x by its norm in equation (4) only: its first skip starts from x, as usual (D-01).
        first = {"literal": "pre", "pre_ffn": "none"}.get(config.placement, config.placement)
        self.mixer_residual = residual(first)
        self.mixer: Any = MIXERS[type(config.mixer)](config.mixer, setting)
        self.cross, self.cross_residual = None, None
        if config.cross is not None:
            self.cross, self.cross_residual = Attention(config.cross, setting, crosses=True), residual(first)
        self.ffn, self.ffn_residual = None, None
        if (feed_forward := FEED_FORWARDS.get(type(config.ffn))) is not None:
            self.ffn, self.ffn_residual = feed_forward(config.ffn, setting), residual(_of_feed_forward(config))

    def forward(self, x: Hidden, scope: Scope, state: BlockState = FORGETS, source: Scope | None = None) -> Output:
        """The layer's output. `source` is the scope of its cross-attention."""
        h = self.mixer_residual.enter(x)
        x = self.mixer_residual.leave(x, h, self.mixer(h, scope, state.mixer))
        if self.cross is not None and self.cross_residual is not None and source is not None:
            h = self.cross_residual.enter(x)
            x = self.cross_residual.leave(x, h, self.cross(h, source, state.cross))
        if self.ffn is None or self.ffn_residual is None:
            return Output(x)
        h = self.ffn_residual.enter(x)
        out: Output = self.ffn(h, scope.queries)
        return Output(self.ffn_residual.leave(x, h, out.hidden), out.routings)

    def new_state(self) -> BlockState:
        """Empty states of the mixer and of cross-attention."""
        return BlockState(empty_state(self.mixer), STATELESS if self.cross is None else empty_state(self.cross))


class ParallelBlock(Block):
    """x + mixer(norm(x)) + ffn(norm'(x)): one sum instead of two (GPT-NeoX, Falcon), with one shared norm or two."""

    def __init__(self, config: BlockConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.one_norm = config.wiring == "parallel_one_norm"

    def forward(self, x: Hidden, scope: Scope, state: BlockState = FORGETS, source: Scope | None = None) -> Output:
        """The layer's output."""
        assert self.ffn is not None
        assert self.ffn_residual is not None
        h = self.mixer_residual.enter(x)
        g = h if self.one_norm else self.ffn_residual.enter(x)
        x = self.mixer_residual.leave(x, h, self.mixer(h, scope, state.mixer))
        out: Output = self.ffn(g, scope.queries)
        return Output(self.ffn_residual.leave(x, g, out.hidden), out.routings)


WIRINGS: dict[str, type[Block]] = {"serial": Block, "parallel": ParallelBlock, "parallel_one_norm": ParallelBlock}


def _of_feed_forward(config: BlockConfig) -> str:
    """The placement of the feed-forward's residual."""
    if config.wiring == "parallel_one_norm":
        return "none"  # it reads the output of the mixer's norm
    if isinstance(config.ffn, layers.MoEConfig) and config.ffn.skip == "internal":
        return "literal"  # the slide's u + ..., where u is the output of the norm (D-22)
    return "pre" if config.placement == "pre_ffn" else config.placement
