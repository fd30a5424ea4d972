"""FlashAttention, written for reading: tiles of queries and keys under a running softmax."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.nn.dropout import Dropout
from heddle.nn.kernels.base import Bias, Kernel, Lowered, Scoring
from heddle.nn.mask import Mask
from heddle.nn.numeric import wide_dtype


class Running(NamedTuple):
    """A softmax-weighted sum over the keys seen so far: Σ e^(s - m) v and Σ e^(s - m), with m the largest score (L2-19).

    Attributes:
        maximum: m, [... T 1]; -inf before the first allowed key.
        total: Σ e^(s - m), [... T 1].
        weighted: Σ e^(s - m) v, [... T e].
    """

    maximum: Tensor
    total: Tensor
    weighted: Tensor

    @staticmethod
    def start(shape: tuple[int, ...], width: int, like: Tensor, sinks: Tensor | None = None) -> "Running":
        """The sums before any key, for queries of this shape and values of this width; sinks, a score for each query, are one
        key without a value."""
        if sinks is not None:
            return Running(sinks.expand(*shape, 1), like.new_ones(*shape, 1), like.new_zeros(*shape, width))
        return Running(like.new_full((*shape, 1), -torch.inf), like.new_zeros(*shape, 1), like.new_zeros(*shape, width))

    def add(self, scores: Tensor, values: Tensor) -> "Running":
        """The sums after more keys; earlier sums are rescaled to the new largest score."""
        maximum = torch.maximum(self.maximum, scores.amax(-1, keepdim=True))
        safe = maximum.masked_fill(maximum == -torch.inf, 0.0)  # rows that saw nothing yet: -inf - -inf would be NaN
        power, rescale = (scores - safe).exp(), (self.maximum - safe).exp()
        return Running(
            maximum,
            self.total * rescale + power.sum(-1, keepdim=True),
            self.weighted * rescale + power @ values,
        )

    def output(self) -> Tensor:
        """The weighted average; exactly 0 for rows that saw nothing (D-10)."""
        return self.weighted / self.total.masked_fill(self.total == 0, 1.0)

    def logsumexp(self) -> Tensor:
        """log Σ e^s; -inf for rows that saw nothing."""
        return self.maximum + self.total.log()


class _Tiles(torch.autograd.Function):
    """FlashAttention (Dao et al. 2022, algorithms 1 and 4) over tiles of queries and keys; q is [B, K, G, T, d].

    The backward pass keeps the inputs, the output and each row's logsumexp, and recomputes the weights tile by tile.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        scoring: Scoring,
        mask: Mask | None,
    ) -> Tensor:
        wide, group = wide_dtype(q.dtype), q.shape[2]
        out = q.new_empty(*q.shape[:4], v.shape[3])
        logsumexp = q.new_empty(*q.shape[:4], 1, dtype=wide)
        for start, stop, first, last in scoring.spans(q.shape[3], k.shape[2]):
            block = q[:, :, :, start:stop].flatten(2, 3).to(wide)
            beside = None if sinks is None else _Tiles.sunk(sinks, q, stop - start)
            running = Running.start(tuple(block.shape[:3]), v.shape[3], block, beside)
            for left, right, masked in _Tiles.tiles(scoring, mask, start, stop, first, last):
                tile = (start, stop, left, right)
                scores, _ = _Tiles.scores(block, k[:, :, left:right].to(wide), bias, scoring, masked, tile)
                running = running.add(scores, v[:, :, left:right].to(wide))
            out[:, :, :, start:stop] = running.output().unflatten(2, (group, -1)).to(q.dtype)
            logsumexp[:, :, :, start:stop] = running.logsumexp().unflatten(2, (group, -1))
        ctx.save_for_backward(q, k, v, out, logsumexp, bias, sinks)
        ctx.scoring, ctx.mask = scoring, mask
        return out

    @staticmethod
    def tiles(
        scoring: Scoring, mask: Mask | None, start: int, stop: int, first: int, last: int
    ) -> list[tuple[int, int, Mask | None]]:
        """The tiles of the keys that queries start … stop - 1 see, each with its mask; None: they see all of it.

        Tiles start at multiples of the block. On a CPU, those of which nothing is seen are left out.
        """
        if torch.compiler.is_exporting():  # the number of keys may differ from call to call
            return [(first, last, mask)]
        begin, block = first - first % scoring.block, scoring.block
        edges = [(left, min(left + block, last)) for left in range(begin, last, block)]
        # Elsewhere the host would wait for the device.
        known = mask is not None and type(mask.queries.position) is Tensor and mask.queries.position.is_cpu
        if mask is None or not known or torch.compiler.is_compiling():
            return [(left, right, mask) for left, right in edges]
        seen, beyond = mask.tile(start, stop, begin, last).flatten(0, 2), (0, -(last - begin) % block)
        some = F.pad(seen.any(0), beyond).unflatten(0, (-1, block)).any(1).tolist()
        every = F.pad(seen.all(0), beyond, value=True).unflatten(0, (-1, block)).all(1).tolist()
        return [
            (*edge, None if all_of_it else mask)
            for edge, any_of_it, all_of_it in zip(edges, some, every, strict=True)
            if any_of_it
        ]

    @staticmethod
    def sunk(sinks: Tensor, q: Tensor, rows: int) -> Tensor:
        """The sink of each query [K, G · rows, 1]."""
        by_head = sinks.to(wide_dtype(q.dtype)).unflatten(0, (-1, q.shape[2], 1, 1))
        return by_head.expand(-1, -1, rows, -1).flatten(1, 2)

    @staticmethod
    def scores(
        q: Tensor, k: Tensor, bias: Tensor | None, scoring: Scoring, mask: Mask | None, tile: tuple[int, int, int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """One tile of scores [B, K, G · t, s], and the derivative of the cap at them (None: 1)."""
        start, stop, left, right = tile
        scores, growth = q @ k.transpose(-2, -1) * scoring.scale, None
        if scoring.cap is not None:
            bent = (scores / scoring.cap).tanh()
            scores, growth = scoring.cap * bent, 1 - bent.square()
        by_head = scores.unflatten(2, (-1, stop - start))
        if bias is not None:
            by_head = by_head + bias[:, :, start:stop, left:right].unflatten(1, (scoring.kv_heads, -1))
        if mask is not None:
            by_head = by_head.masked_fill(~mask.tile(start, stop, left, right)[:, :, None], -torch.inf)
        return by_head.flatten(2, 3), growth

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logsumexp, bias, sinks = ctx.saved_tensors
        scoring, mask, wide, group = ctx.scoring, ctx.mask, wide_dtype(q.dtype), q.shape[2]
        q_gradient = torch.zeros_like(q, dtype=wide, memory_format=torch.contiguous_format)
        k_gradient, v_gradient = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        bias_gradient = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        sinks_gradient = torch.zeros_like(sinks, dtype=wide) if ctx.needs_input_grad[4] else None
        # Rows that saw nothing have only scores of -inf, and e^(-inf - 0) = 0 is the right weight.
        logsumexp = logsumexp.masked_fill(logsumexp == -torch.inf, 0.0)
        for start, stop, first, last in scoring.spans(q.shape[3], k.shape[2]):
            block, above, result, total = (
                tensor[:, :, :, start:stop].flatten(2, 3).to(wide) for tensor in (q, gradient, out, logsumexp)
            )
            mean = (above * result).sum(-1, keepdim=True)  # Σ weight · gradient of the weight, without the weights
            if sinks_gradient is not None:
                share = (_Tiles.sunk(sinks, q, stop - start) - total).exp() * mean
                sinks_gradient -= share.unflatten(2, (group, -1)).sum((0, 3, 4)).flatten()
            for left, right, masked in _Tiles.tiles(scoring, mask, start, stop, first, last):
                tile, keys, values = (
                    (start, stop, left, right),
                    k[:, :, left:right].to(wide),
                    v[:, :, left:right].to(wide),
                )
                scores, growth = _Tiles.scores(block, keys, bias, scoring, masked, tile)
                weights = (scores - total).exp()
                v_gradient[:, :, left:right] += weights.transpose(-2, -1) @ above
                share = weights * (above @ values.transpose(-2, -1) - mean)
                if bias_gradient is not None:
                    added = share.unflatten(2, (group, -1)).flatten(1, 2).to(bias_gradient.dtype)
                    added = added.sum(0, keepdim=True) if bias_gradient.shape[0] == 1 else added
                    bias_gradient[:, :, start:stop, left:right] = added
                share = (share if growth is None else share * growth) * scoring.scale
                q_gradient[:, :, :, start:stop] += (share @ keys).unflatten(2, (group, -1))
                k_gradient[:, :, left:right] += share.transpose(-2, -1) @ block
        gradients = (q_gradient.to(q.dtype), k_gradient.to(k.dtype), v_gradient.to(v.dtype))
        sinks_gradient = None if sinks_gradient is None else sinks_gradient.to(sinks.dtype)
        return *gradients, bias_gradient, sinks_gradient, None, None


class Blockwise(Kernel):
    """FlashAttention, written for reading, for any mask, block size and device (L2-16 … L2-20; Dao et al. 2022).

    Besides inputs and outputs it holds O(n · d) numbers and one tile, and tiles that a causal mask blocks entirely are skipped
    (C-14). On a CPU the mask is evaluated for the queries of a tile at once, and any tile that it blocks entirely is skipped.
    It computes in fp32 or wider and cannot drop attention weights.

    Args:
        block: queries in a tile, and keys in a tile.

    Raises:
        HeddleError: in `forward`, if dropout is active.
    """

    def __init__(
        self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None, block: int = 128
    ) -> None:
        super().__init__(scale, dropout, cap)
        self.block = block

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        window = mask.window()
        return Lowered("blockwise", mask, mask.is_causal() or window is not None, window, bias=bias)

    def attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        self.check_needs("blockwise", lowered)
        kv_heads, mask = k.shape[1], lowered.mask
        scoring = Scoring(self.scale, self.cap, lowered.causal, lowered.window, kv_heads, self.block)
        grouped = q.unflatten(1, (kv_heads, q.shape[1] // kv_heads))
        arguments = (grouped, k, v, lowered.bias, lowered.sinks, scoring, None if mask.is_open() else mask)
        out: Tensor = _Tiles.apply(*arguments)  # type: ignore[no-untyped-call]
        return out.flatten(1, 2)
