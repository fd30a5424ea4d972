"""Attention kernels: softmax(q kᵀ · scale) v under a mask, four ways that agree by law.

`reference` is the definition. `plain` walks through blocks of query rows and leaves out the keys that a causal block cannot
see; for short sequences on CPU it is the fastest. `sdpa` is torch's fused kernel. `auto` is a table: mask, then length and
device. A mask is lowered once per forward pass into what the kernel wants; every layer receives the lowered thing.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.nn.dropout import Dropout
from heddle.nn.mask import Mask

BLOCK = 128  # query rows at a time: larger blocks waste causal work, smaller ones starve the matrix units


@dataclass(frozen=True)
class Lowered:
    """A mask as a kernel wants it.

    Attributes:
        kernel: which kernel it was lowered for.
        causal: the lower triangle of a square; `allowed` is then not needed.
        allowed: Bool[b 1 T S], or None when everything (or the triangle) is seen.
        dead: Bool[b 1 T 1], queries that see nothing at all and whose output is exactly 0 (D-10); None when there are none.
    """

    kernel: Literal["reference", "plain", "sdpa"]
    causal: bool
    allowed: Bool[Tensor, "b 1 T S"] | None
    dead: Bool[Tensor, "b 1 T 1"] | None


def masked_softmax(
    scores: Float[Tensor, "*b T S"], allowed: Bool[Tensor, "..."], dead: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b T S"]:
    """Softmax over the allowed keys; blocked ones weigh exactly 0 (L0-92), and so does a row with no allowed key (D-10).

    Blocking is -inf before the softmax, by selection, never by multiplying (D-08, D-09). `dead` marks the rows without any
    allowed key; left out, they are found.
    """
    dead = ~allowed.any(-1, keepdim=True) if dead is None else dead
    # A dead row first sees everything and is then set to 0: softmax of -inf alone is nan, and nan survives into gradients.
    weights = scores.masked_fill(~(allowed | dead), -torch.inf).softmax(-1)
    return weights.masked_fill(dead, 0.0)


def _dead(mask: Mask, allowed: Tensor | None) -> Tensor | None:
    """Queries that see nothing; None when the form says that there are none."""
    if mask.queries.form in ("plain", "uniform") and mask.keys.form == "plain":
        return None
    if allowed is None:
        return (mask.queries.segment < 0)[:, None, :, None]
    return ~allowed.any(-1, keepdim=True)


class Kernel(nn.Module, ABC):
    """softmax(q kᵀ · scale) v under a lowered mask; query head h reads key head h // (H/K)."""

    def __init__(self, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout)

    @staticmethod
    @abstractmethod
    def lower(mask: Mask) -> Lowered:
        """What this kernel needs of the mask; called once per forward pass and distinct attention."""

    @abstractmethod
    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        """The weighted averages of the values."""


class Reference(Kernel):
    """The definition, in fp32 or wider, with named places to look: `scores` before the softmax, `weights` after (D-35)."""

    def __init__(self, scale: float, dropout: float = 0.0) -> None:
        super().__init__(scale, dropout)
        self.scores = nn.Identity()
        self.weights = nn.Identity()

    @staticmethod
    def lower(mask: Mask) -> Lowered:
        allowed = mask.dense()
        return Lowered("reference", False, allowed, ~allowed.any(-1, keepdim=True))

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        assert lowered.allowed is not None
        wide = torch.promote_types(q.dtype, torch.float32)
        group = q.shape[1] // k.shape[1]
        keys = k.repeat_interleave(group, dim=1).to(wide)
        values = v.repeat_interleave(group, dim=1).to(wide)
        scores = self.scores(q.to(wide) @ keys.transpose(-2, -1) * self.scale)
        weights = self.weights(masked_softmax(scores, lowered.allowed, lowered.dead))
        return (self.dropout(weights) @ values).to(q.dtype)


def _spans(queries: int, keys: int, causal: bool) -> list[tuple[int, int, int]]:
    """Blocks of query rows as (start, stop, how many keys any of them can see)."""
    starts = range(0, queries, BLOCK)
    return [(start, stop, stop if causal else keys) for start in starts for stop in [min(start + BLOCK, queries)]]


class _Blocks(torch.autograd.Function):
    """Attention over blocks of query rows, with its gradient written out; q is [N, G, T, d], k and v are [N, S, ·].

    Autograd makes the gradient of a slice a whole tensor of zeros with the slice in it, once per block. Written out, each
    block adds to the keys it saw and to nothing else, which takes a third off the time of attention.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        causal: bool,
        allowed: Tensor | None,
        keeps: tuple[Tensor, ...] | None,
    ) -> Tensor:
        group, out = q.shape[1], q.new_empty(*q.shape[:3], v.shape[2])
        kept = []
        for index, (start, stop, seen) in enumerate(_spans(q.shape[2], k.shape[1], causal)):
            scores = _Blocks.scores(q[:, :, start:stop], k[:, :seen], scale, causal, allowed, start)
            weights = scores.softmax(-1)  # torch's softmax works in fp32 inside
            dropped = weights if keeps is None else weights * keeps[index]
            out[:, :, start:stop] = torch.bmm(dropped, v[:, :seen]).unflatten(1, (group, stop - start))
            kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept, *(keeps or ()))
        ctx.scale, ctx.causal, ctx.drops = scale, causal, keeps is not None
        return out

    @staticmethod
    def scores(q: Tensor, k: Tensor, scale: float, causal: bool, allowed: Tensor | None, start: int) -> Tensor:
        """Scores [N, G · rows, S] of the query rows from `start` on, blocked ones at -inf."""
        group, rows = q.shape[1:3]
        flat = q.flatten(1, 2)
        if causal:
            # Adding the triangle inside the matrix product saves two passes over the scores.
            row = torch.arange(start, start + rows, device=q.device).repeat(group)[:, None]
            later = torch.arange(k.shape[1], device=q.device) > row
            triangle = torch.zeros(later.shape, dtype=q.dtype, device=q.device).masked_fill(later, -torch.inf)
            return torch.baddbmm(triangle.expand(q.shape[0], -1, -1), flat, k.transpose(1, 2), alpha=scale)
        scores = torch.bmm(flat * scale, k.transpose(1, 2))
        if allowed is None:
            return scores
        seen = allowed[:, :, None, start : start + rows]  # [b, 1, 1, rows, S], where b is 1 or N over the kv-heads
        kv_heads = 1 if allowed.shape[0] == 1 else q.shape[0] // allowed.shape[0]
        apart = scores.unflatten(1, (group, rows)).unflatten(0, (-1, kv_heads))
        return apart.masked_fill(~seen, -torch.inf).flatten(0, 1).flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *rest = ctx.saved_tensors
        spans = _spans(q.shape[2], k.shape[1], ctx.causal)
        kept, keeps = rest[: len(spans)], rest[len(spans) :]
        group, q_gradient = q.shape[1], torch.empty_like(q, memory_format=torch.contiguous_format)
        k_gradient, v_gradient = None, None
        for index, (start, stop, seen) in reversed(list(enumerate(spans))):
            weights, block = kept[index], q[:, :, start:stop].flatten(1, 2)
            above = gradient[:, :, start:stop].flatten(1, 2)
            dropped = weights * keeps[index] if ctx.drops else weights
            v_share = torch.bmm(dropped.transpose(1, 2), above)
            above = torch.bmm(above, v[:, :seen].transpose(1, 2))
            above = above * keeps[index] if ctx.drops else above
            above = torch._softmax_backward_data(above, weights, -1, weights.dtype)
            q_share = torch.bmm(above, k[:, :seen]).mul_(ctx.scale)
            q_gradient[:, :, start:stop] = q_share.unflatten(1, (group, stop - start))
            k_share = torch.bmm(above.transpose(1, 2), block)
            if k_gradient is None or v_gradient is None:  # the last block saw all keys
                k_gradient, v_gradient = k_share, v_share
            else:
                k_gradient[:, :seen] += k_share
                v_gradient[:, :seen] += v_share
        assert k_gradient is not None
        return q_gradient, k_gradient.mul_(ctx.scale), v_gradient, None, None, None, None


class Plain(Kernel):
    """Plain matrix products over blocks of query rows, without the keys that no row of a causal block can see."""

    @staticmethod
    def lower(mask: Mask) -> Lowered:
        if mask.is_open():
            return Lowered("plain", False, None, None)
        causal = mask.is_causal()
        allowed = None if causal else mask.dense()
        return Lowered("plain", causal, allowed, _dead(mask, allowed))

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        rows, heads, queries, _ = q.shape
        kv_heads, group = k.shape[1], heads // k.shape[1]
        q = q.unflatten(1, (kv_heads, group)).flatten(
            0, 1
        )  # [B·K, H/K, T, d]: the heads that share keys stand together
        allowed, keeps = lowered.allowed, None
        if allowed is not None and lowered.dead is not None:
            allowed = allowed | lowered.dead  # such a row sees everything first, and is 0 in the end
        if self.dropout.active:
            spans = _spans(queries, k.shape[2], lowered.causal)
            shapes = [(q.shape[0], group * (stop - start), seen) for start, stop, seen in spans]
            keeps = tuple(self.dropout(q.new_ones(shape)) for shape in shapes)
        out: Tensor = _Blocks.apply(q, k.flatten(0, 1), v.flatten(0, 1), self.scale, lowered.causal, allowed, keeps)  # type: ignore[no-untyped-call]
        out = out.unflatten(0, (rows, kv_heads)).flatten(1, 2)
        return out if lowered.dead is None else out.masked_fill(lowered.dead, 0.0)


class SDPA(Kernel):
    """torch's `scaled_dot_product_attention`: memory linear in the length."""

    @staticmethod
    def lower(mask: Mask) -> Lowered:
        if mask.is_open():
            return Lowered("sdpa", False, None, None)
        causal = mask.is_causal()
        allowed = None if causal else mask.dense()
        dead = _dead(mask, allowed)
        if allowed is not None and dead is not None:
            allowed = (
                allowed | dead
            )  # what a row without keys gives differs between torch's backends: see everything, then 0
        return Lowered("sdpa", causal, allowed, dead)

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=lowered.allowed,
            dropout_p=self.dropout.rate if self.training else 0.0,
            is_causal=lowered.causal,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out if lowered.dead is None else out.masked_fill(lowered.dead, 0.0)


class Auto(Kernel):
    """The fastest kernel for this mask, length and device: `plain` for short sequences on CPU, else `sdpa`."""

    def __init__(self, scale: float, dropout: float = 0.0) -> None:
        super().__init__(scale, dropout)
        self.plain = Plain(scale, dropout)
        self.sdpa = SDPA(scale, dropout)

    @staticmethod
    def lower(mask: Mask) -> Lowered:
        return KERNELS[fastest(mask.queries.position.device.type, mask.keys.width)].lower(mask)

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        kernel = self.plain if lowered.kernel == "plain" else self.sdpa
        return kernel(q, k, v, lowered)


# device type -> longest key sequence for which `plain` beats `sdpa`, as measured; a device not named here never prefers it
PLAIN_UP_TO = {"cpu": 768}

KERNELS: dict[str, type[Kernel]] = {"auto": Auto, "reference": Reference, "plain": Plain, "sdpa": SDPA}


def fastest(device: str, keys: int) -> str:
    """The name of the kernel that `auto` takes for `keys` keys on a device type."""
    return "plain" if keys <= PLAIN_UP_TO.get(device, 0) else "sdpa"
