"""Multi-head attention, with what a stack prepares once per forward pass: the lowered mask and the rotation."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from heddle.nn.kernels import KERNELS, Kernel, Lowered
from heddle.nn.layout import Layout
from heddle.nn.mask import Mask, Rule
from heddle.nn.position import Rotary, Rotation, rotate
from heddle.nn.state import STATELESS, State


@dataclass(frozen=True)
class View:
    """What one way of seeing needs in this forward pass, made once and shared by all layers that see so."""

    queries: Layout
    keys: Layout
    lowered: Lowered
    rotation: Rotation | None


class Sight(nn.Module):
    """One distinct way of seeing: a rule, a kernel's lowering, and relative positions."""

    def __init__(self, rule: Rule, kernel: str, rotary: Rotary | None) -> None:
        super().__init__()
        self.rule = rule
        self.kernel: type[Kernel] = KERNELS[kernel]
        self.rotary = rotary

    def forward(self, queries: Layout, keys: Layout) -> View:
        rotation = None if self.rotary is None else self.rotary(queries)
        return View(queries, keys, self.kernel.lower(Mask(self.rule, queries, keys)), rotation)


class Mixer(Protocol):
    """What stands in a block's first branch: tokens exchange information."""

    def __call__(self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS) -> Float[Tensor, "B T D"]: ...


class Attention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = softmax(q_i k_iᵀ · scale) v_i (L0-41, L0-42; Vaswani et al. 2017, 3.2.2).

    With fewer key heads than heads, each key head serves H/K neighbouring query heads (Ainslie et al. 2023). Head i owns the
    columns i·d … (i+1)·d of each projection.

    Args:
        dim: D, width in and out.
        heads: H.
        kv_heads: K, a divisor of H.
        head_dim: d, width of a query and of a key head.
        value_dim: width of a value head.
        scale: factor on the scores.
        bias: whether the four projections have biases.
        query_norm, key_norm: norms over d before the rotation, or None.
        dropout: rate on the attention weights.
        kernel: a row of `KERNELS`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        scale: float,
        bias: bool = True,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        dropout: float = 0.0,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.q = nn.Linear(dim, heads * head_dim, bias=bias)
        self.k = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.v = nn.Linear(dim, kv_heads * value_dim, bias=bias)
        self.o = nn.Linear(heads * value_dim, dim, bias=bias)
        self.q_norm = query_norm
        self.k_norm = key_norm
        self.kernel = KERNELS[kernel](scale, dropout)

    def forward(self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        def keys_and_values() -> tuple[Tensor, Tensor]:
            k = split_heads(self.k(x), self.head_dim)
            return self._place(k, self.k_norm, view), split_heads(self.v(x), self.value_dim)

        q = self._place(split_heads(self.q(x), self.head_dim), self.q_norm, view)
        k, v = state.extend(keys_and_values, view.queries, view.keys.width)
        return self.o(self.kernel(q, k, v, view.lowered).transpose(1, 2).flatten(2))

    @staticmethod
    def _place(x: Float[Tensor, "B h T d"], norm: nn.Module | None, view: View) -> Float[Tensor, "B h T d"]:
        x = x if norm is None else norm(x)
        return x if view.rotation is None else rotate(x, view.rotation)


def split_heads(x: Float[Tensor, "B T hd"], width: int) -> Float[Tensor, "B h T d"]:
    """Cut the last axis into heads of `width` channels. The number of heads is read off, so a shard needs no other code."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)
