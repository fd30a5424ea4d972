"""Multi-head attention: queries, keys and values, rotation, the kernel, the output projection."""

from dataclasses import replace
from math import sqrt

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.layers import AttentionConfig
from heddle.nn.custom import CustomScores
from heddle.nn.kernels import KERNELS
from heddle.nn.mask import Causal, Everything, Rule, Window
from heddle.nn.norm import make_norm
from heddle.nn.output import Hidden
from heddle.nn.position import relative_of
from heddle.nn.rotation import rotate
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Fixed, Growing, Rolling, State


class Attention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = softmax(q_i k_iᵀ · scale) v_i (L0-41, L0-42; Vaswani et al. 2017, 3.2.2).

    With fewer key heads than query heads, each key head serves H/K neighbouring query heads (Ainslie et al. 2023). Head i has
    columns i·d … (i+1)·d of each projection. In cross-attention, keys and values are computed from the encoder's output,
    which the scope has (L1-78, D-46).

    Args:
        config: heads, widths, norms, window, kernel.
        setting: the stack that the layer belongs to.
        crosses: whether keys and values come from another sequence.
    """

    def __init__(self, config: AttentionConfig, setting: Setting, crosses: bool = False) -> None:
        super().__init__()
        dim, heads, kv_heads, bias = setting.dim, config.heads, config.key_heads(), config.biased()
        self.head_dim = config.width(dim)
        self.value_dim = config.value_dim or self.head_dim
        self.crosses = crosses
        self.pattern = attention_pattern(config, setting, crosses)
        self.q = nn.Linear(dim, heads * self.head_dim, bias="q" in bias)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias="k" in bias)
        self.v = nn.Linear(dim, kv_heads * self.value_dim, bias="v" in bias)
        self.o = nn.Linear(heads * self.value_dim, dim, bias="o" in bias)
        self.norms_all = config.qk_norm_over == "all"
        qk = [self.head_dim * (count if self.norms_all else 1) for count in (heads, kv_heads)]
        norms = [nn.Identity() if config.qk_norm is None else make_norm(config.qk_norm, width) for width in qk]
        self.q_norm, self.k_norm = norms
        kernel = KERNELS[config.kernel if config.scores is None else "reference"]
        self.kernel = kernel(score_scale(config, dim), setting.drop(config.dropout), config.cap)
        self.scores = None if config.scores is None else CustomScores(config.scores, setting, heads)
        self.sinks = nn.Parameter(self.o.weight.new_zeros(heads)) if config.sinks else None

    def forward(self, x: Hidden, scope: Scope, state: State = STATELESS) -> Hidden:
        if (stored := state.read()) is None:
            q, k, v = self.project(x, scope)
            k, v = state.update((k, v), scope.queries, scope.keys)
        else:
            q, (k, v) = rotate(self.heads_of(self.q(x), self.q_norm), scope.rotation), stored
        assert scope.mask is not None
        mask = scope.mask
        if self.scores is not None or self.sinks is not None:
            mask = replace(mask, custom_scores=self.scores, sinks=self.sinks)
        return self.o(merge_heads(self.kernel(q, k, v, mask)))

    def project(self, x: Hidden, scope: Scope) -> tuple[Tensor, Tensor, Tensor]:
        """The heads of queries [B H T d], keys [B K S d] and values [B K S e]; `heddle.model.fusing` makes them one product."""
        source = x if scope.source is None else scope.source
        q = rotate(self.heads_of(self.q(x), self.q_norm), scope.rotation)
        k = rotate(self.heads_of(self.k(source), self.k_norm), scope.rotation)
        return q, k, split_heads(self.v(source), self.value_dim)

    def heads_of(self, x: Float[Tensor, "B T hd"], norm: nn.Module) -> Float[Tensor, "B h T d"]:
        """Queries or keys split into heads, with the norm over each head or over all."""
        return split_heads(norm(x), self.head_dim) if self.norms_all else norm(split_heads(x, self.head_dim))

    def new_state(self) -> State:
        """An empty state for all keys and values, for the last `window` of them, or for those of the encoder's output."""
        if self.crosses:
            return Fixed()
        return Growing() if self.pattern.reach is None else Rolling(self.pattern.reach)


def attention_pattern(config: AttentionConfig, setting: Setting, crosses: bool = False) -> Pattern:
    """The pattern of an attention layer."""
    rule: Rule = Causal() if setting.causal and not crosses else Everything()
    if config.window is not None:
        rule = rule & Window(config.window) if setting.causal else Window(config.window)
    needs, predicting = (config.needs(setting.dropout, training) for training in (True, False))
    return Pattern(rule, config.window, config.kernel, needs, predicting, relative_of(config, setting))


def score_scale(config: AttentionConfig, dim: int) -> float:
    """The factor on q kᵀ, for a model of width `dim`."""
    if config.scale == "dim":
        return 1 / sqrt(dim)
    return 1 / sqrt(config.width(dim)) if config.scale == "head_dim" else config.scale


def split_heads(x: Float[Tensor, "B T hd"], width: int) -> Float[Tensor, "B h T d"]:
    """Split the last axis into heads of `width` channels. The number of heads is inferred, so this works on a shard too."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "B h T d"]) -> Float[Tensor, "B T hd"]:
    """Concatenate the heads."""
    return x.transpose(1, 2).flatten(2)
