"""Latent attention: keys and values are computed from one narrow vector per token, the only one that is cached."""

from math import sqrt

import torch
from torch import Tensor, nn

from heddle.config.layers import LatentConfig
from heddle.nn.attention import merge_heads, split_heads
from heddle.nn.kernels import KERNELS
from heddle.nn.mask import Causal, Everything
from heddle.nn.norm import RMSNorm
from heddle.nn.output import Hidden
from heddle.nn.position import Relative
from heddle.nn.rotation import rotate
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Growing, State


class Latent(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, 2405.04434, 2.1): c = norm(x W_c), k_i = [c W_K,i; r], v_i = c W_V,i.

    r = rotated(x W_R) is one key for all heads, and each query has as many rotated channels after its others. The cache
    stores c and r, `rank` + `rotary_dim` numbers per token, from which keys and values are computed anew in each call.

    Args:
        config: heads, widths, kernel.
        setting: the stack that the layer belongs to.
    """

    def __init__(self, config: LatentConfig, setting: Setting) -> None:
        super().__init__()
        dim, heads, bias = setting.dim, config.heads, config.bias
        self.head_dim, self.rotary_dim = config.head_dim, config.rotary_dim
        self.value_dim = config.value_dim or config.head_dim
        needs, predicting = (config.needs(setting.dropout, training) for training in (True, False))
        relative = Relative(config.relative, config.rotary_dim, setting.causal and not setting.prefix)
        rule = Causal() if setting.causal else Everything()
        self.pattern = Pattern(rule, None, config.kernel, needs, predicting, relative)
        self.q_down = None if config.q_rank is None else nn.Linear(dim, config.q_rank, bias)
        self.q_norm = nn.Identity() if config.q_rank is None else RMSNorm(config.q_rank, config.eps)
        self.q = nn.Linear(config.q_rank or dim, heads * config.width(dim), bias=False)
        self.down = nn.Linear(dim, config.rank, bias)
        self.down_norm = RMSNorm(config.rank, config.eps)
        self.r = nn.Linear(dim, config.rotary_dim, bias)
        self.k = nn.Linear(config.rank, heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.rank, heads * self.value_dim, bias=False)
        self.o = nn.Linear(heads * self.value_dim, dim, bias)
        scale = 1 / sqrt(config.width(dim)) if config.scale == "head_dim" else config.scale
        self.kernel = KERNELS[config.kernel](scale, setting.drop(config.dropout), None)

    def forward(self, x: Hidden, scope: Scope, state: State = STATELESS) -> Hidden:
        queries = split_heads(
            self.q(x if self.q_down is None else self.q_norm(self.q_down(x))), self.head_dim + self.rotary_dim
        )
        plain, rotary = queries.split((self.head_dim, self.rotary_dim), dim=-1)
        new = (self.down_norm(self.down(x)).unsqueeze(1), rotate(self.r(x).unsqueeze(1), scope.rotation))
        latent, shared = state.update(new, scope.queries, scope.keys)  # [B 1 S rank], [B 1 S rotary_dim]
        k = split_heads(self.k(latent.squeeze(1)), self.head_dim)
        v = split_heads(self.v(latent.squeeze(1)), self.value_dim)
        k = torch.cat((k, shared.expand(-1, k.shape[1], -1, -1)), dim=-1)
        q: Tensor = torch.cat((plain, rotate(rotary, scope.rotation)), dim=-1)
        assert scope.mask is not None
        out: Hidden = self.o(merge_heads(self.kernel(q, k, v, scope.mask)))
        return out

    def new_state(self) -> State:
        """An empty state for the narrow vectors and the shared keys of all tokens."""
        return Growing()
