"""A block: residuals around branches. A new wiring is a new class; everything else is a row in a table."""

from collections.abc import Callable
from math import sqrt

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.model import AttentionConfig, BlockConfig, GatedConfig, MLPConfig
from heddle.nn.attention import Attention, View
from heddle.nn.dropout import Dropout
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.norm import make_norm
from heddle.nn.state import STATELESS, State

# Where a residual's norms stand: before the branch, after the branch, after the sum.
PLACEMENT = {"pre": (True, False, False), "post": (False, False, True)}


class Residual(nn.Module):
    """x + dropout(branch(x)), with norms where the placement says (L0-53; D-01: the skip starts from the un-normed x)."""

    def __init__(self, placement: str, norm: Callable[[], nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        before, after, outside = PLACEMENT[placement]
        self.before = norm() if before else nn.Identity()
        self.after = norm() if after else nn.Identity()
        self.outside = norm() if outside else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"], branch: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        return self.outside(x + self.dropout(self.after(branch(self.before(x)))))


class Block(nn.Module):
    """x = x + mixer(norm(x)); x = x + ffn(norm(x)), in the placement the config names (L2-35; golden `block_pre_norm`)."""

    def __init__(self, config: BlockConfig, dim: int) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return make_norm(config.norm, dim)

        self.mixer_residual = Residual(config.placement, norm, config.dropout)
        self.mixer = MIXERS[type(config.mixer)](config.mixer, dim)
        self.ffn_residual = Residual(config.placement, norm, config.dropout)
        self.ffn = FEED_FORWARDS[type(config.ffn)](config.ffn, dim)

    def forward(self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        x = self.mixer_residual(x, lambda h: self.mixer(h, view, state))
        return self.ffn_residual(x, self.ffn)


def make_attention(config: AttentionConfig, dim: int) -> Attention:
    """The attention a config describes, for a model of width `dim`."""
    head_dim = config.width(dim)
    scales = {"head_dim": 1 / sqrt(head_dim), "dim": 1 / sqrt(dim)}
    query_norm, key_norm = (None if config.qk_norm is None else make_norm(config.qk_norm, head_dim) for _ in range(2))
    return Attention(
        dim,
        config.heads,
        config.key_heads(),
        head_dim,
        config.value_dim or head_dim,
        scales[config.scale] if isinstance(config.scale, str) else config.scale,
        config.bias,
        query_norm,
        key_norm,
        dropout=config.dropout,
        kernel=config.kernel,
    )


def make_mlp(config: MLPConfig, dim: int) -> MLP:
    """The two-layer feed-forward a config describes."""
    return MLP(dim, config.width(dim), config.activation, config.bias)


def make_gated(config: GatedConfig, dim: int) -> Gated:
    """The gated feed-forward a config describes."""
    return Gated(dim, config.width(dim), config.activation, config.bias)


# One row per choice. To add one: a config class with its `kind`, a module, a row; it then inherits every law.
MIXERS: dict[type, Callable[..., nn.Module]] = {AttentionConfig: make_attention}
FEED_FORWARDS: dict[type, Callable[..., nn.Module]] = {MLPConfig: make_mlp, GatedConfig: make_gated}
