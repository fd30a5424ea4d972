"""Multi-head attention, with what a stack prepares once per forward pass: the lowered mask, rotation and bias."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from heddle.nn.dropout import Dropout
from heddle.nn.kernels import KERNELS, Kernel, Lowered
from heddle.nn.layout import Layout
from heddle.nn.mask import Mask, Rule
from heddle.nn.position import Alibi, Buckets, Rotary, Rotation, rotate
from heddle.nn.state import STATELESS, Fixed, Growing, Rolling, State


@dataclass(frozen=True)
class View:
    """What one way of seeing needs in this forward pass, made once and shared by all layers that see so.

    Attributes:
        queries: where the new tokens stand.
        keys: where what they look at stands.
        lowered: the mask as the kernel wants it; None where no attention is paid.
        rotation: of the new tokens' queries and keys.
    """

    queries: Layout
    keys: Layout
    lowered: Lowered | None
    rotation: Rotation | None


class Sight(nn.Module):
    """One distinct way of seeing: a rule, a kernel's lowering, and relative positions.

    Args:
        rule: who may see whom.
        kernel: a row of `KERNELS`, or None for mixers that only need to know where tokens stand.
        relative: what distances do to queries and keys (`Rotary`) or to scores (`Alibi`, `Buckets`). Ways of seeing that
            differ in rule or kernel alone share it: one of them holds it, the others are handed it with each call.
        fused: whether torch's fused kernel knows all that the layers want; it has no cap and one kind of dropout.
    """

    def __init__(self, rule: Rule, kernel: str | None, relative: nn.Module | None = None, fused: bool = True) -> None:
        super().__init__()
        self.rule = rule
        self.fused = fused
        self.kernel: type[Kernel] | None = None if kernel is None else KERNELS[kernel]
        self.relative = relative

    def forward(self, queries: Layout, keys: Layout, relative: nn.Module | None = None) -> View:
        if self.kernel is None:
            return View(queries, keys, None, None)
        relative = self.relative if relative is None else relative
        rotation = relative(queries) if isinstance(relative, Rotary) else None
        bias = relative(queries, keys) if isinstance(relative, Alibi | Buckets) else None
        return View(queries, keys, self.kernel.lower(Mask(self.rule, queries, keys), bias, self.fused), rotation)


class Mixer(Protocol):
    """What stands in a block's first branch: tokens exchange information, each with what came before it."""

    def __call__(self, x: Float[Tensor, "B T D"], view: View, state: State = STATELESS) -> Float[Tensor, "B T D"]: ...

    def new_state(self) -> State:
        """An empty memory of what the next tokens need of the earlier ones. A mixer whose memory is a window has a `window`."""
        ...


class Attention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = softmax(q_i k_iᵀ · scale) v_i (L0-41, L0-42; Vaswani et al. 2017, 3.2.2).

    With fewer key heads than heads, each key head serves H/K neighbouring query heads (Ainslie et al. 2023). Head i owns the
    columns i·d … (i+1)·d of each projection. Given the encoder's output, keys and values are this layer's projections of it:
    cross-attention (L1-78, D-46).

    Args:
        dim: D, width in and out.
        heads: H.
        kv_heads: K, a divisor of H.
        head_dim: d, width of a query and of a key head.
        value_dim: width of a value head.
        scale: factor on the scores.
        bias: which of the four projections have biases.
        query_norm, key_norm: norms over d before the rotation, or None.
        dropout: on the attention weights, a rate or a module.
        kernel: a row of `KERNELS`.
        cap: scores become cap · tanh(scores / cap), or None.
        window: how far back a token sees, itself included; None: to the beginning.
        crosses: whether keys and values come from another sequence.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        scale: float,
        bias: Collection[str] = ("q", "k", "v", "o"),
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        dropout: float | Dropout = 0.0,
        kernel: str = "auto",
        cap: float | None = None,
        window: int | None = None,
        crosses: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.window = window
        self.crosses = crosses
        self.q = nn.Linear(dim, heads * head_dim, bias="q" in bias)
        self.k = nn.Linear(dim, kv_heads * head_dim, bias="k" in bias)
        self.v = nn.Linear(dim, kv_heads * value_dim, bias="v" in bias)
        self.o = nn.Linear(heads * value_dim, dim, bias="o" in bias)
        self.q_norm = query_norm
        self.k_norm = key_norm
        self.kernel = KERNELS[kernel](scale, dropout, cap)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        view: View,
        state: State = STATELESS,
        memory: Float[Tensor, "B S D"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        def keys_and_values() -> tuple[Tensor, Tensor]:
            source = x if memory is None else memory
            k = split_heads(self.k(source), self.head_dim)
            return self._place(k, self.k_norm, view), split_heads(self.v(source), self.value_dim)

        assert view.lowered is not None
        q = self._place(split_heads(self.q(x), self.head_dim), self.q_norm, view)
        k, v = state.extend(keys_and_values, view.queries, view.keys)
        return self.o(self.kernel(q, k, v, view.lowered).transpose(1, 2).flatten(2))

    def new_state(self) -> State:
        """Remembers every key and value, the last `window` of them, or those of the encoder's output."""
        if self.crosses:
            return Fixed()
        return Growing() if self.window is None else Rolling(self.window)

    @staticmethod
    def _place(x: Float[Tensor, "B h T d"], norm: nn.Module | None, view: View) -> Float[Tensor, "B h T d"]:
        x = x if norm is None else norm(x)
        return x if view.rotation is None else rotate(x, view.rotation)


def split_heads(x: Float[Tensor, "B T hd"], width: int) -> Float[Tensor, "B h T d"]:
    """Cut the last axis into heads of `width` channels. The number of heads is read off, so a shard needs no other code."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def head_products(attention: Attention) -> tuple[Float[Tensor, "H D D"], Float[Tensor, "H D D"]]:
    """W_Q^i (W_K^i)ᵀ and W_V^i W_O^i of every head, to look at (L0-34, L0-44, D-42).

    The first says which pairs of vectors score high, x W_Q^i (W_K^i)ᵀ xᵀ, biases and norms aside; the second what a head
    writes of what it reads. Both are D x D of rank at most d, so as weights they would save nothing.
    """

    def columns(linear: nn.Linear, width: int) -> Tensor:
        return linear.weight.unflatten(0, (-1, width)).transpose(1, 2)  # [h, D, width], as the lectures write X W

    q, k = columns(attention.q, attention.head_dim), columns(attention.k, attention.head_dim)
    v = columns(attention.v, attention.value_dim)
    o = attention.o.weight.T.unflatten(0, (-1, attention.value_dim))  # [H, value_dim, D]
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    return q @ k.transpose(1, 2), v @ o
