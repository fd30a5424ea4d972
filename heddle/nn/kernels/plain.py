"""Attention as plain matrix products over blocks of query rows: the fastest kernel for short sequences on a CPU."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.nn.kernels.base import Bias, Kernel, Lowered, Scoring, dead_queries
from heddle.nn.mask import Mask
from heddle.nn.numeric import capped, wide_dtype

BLOCK = 128  # query rows at a time: larger blocks waste causal work, smaller ones starve the matrix units


class _Blocks(torch.autograd.Function):
    """Attention over blocks of query rows, with the gradient written by hand; q is [N, G, T, d], k and v are [N, S, ·].

    For the gradient of a slice, autograd allocates a whole tensor of zeros, once per block. Here each block adds only to the
    keys it saw, which takes a third off the time of attention.
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
        allowed: Tensor | None,
        keep_masks: tuple[Tensor, ...] | None,
    ) -> Tensor:
        out, weights = _Blocks.attend(q, k, v, bias, sinks, scoring, allowed, keep_masks, any(ctx.needs_input_grad))
        ctx.save_for_backward(q, k, v, *weights, *(keep_masks or ()))
        ctx.scoring, ctx.drops, ctx.sinks = scoring, keep_masks is not None, None if sinks is None else sinks.dtype
        # Only a bias that learns needs a gradient.
        ctx.bias = None if bias is None or not ctx.needs_input_grad[3] else (bias.shape, bias.dtype)
        return out

    @staticmethod
    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        scoring: Scoring,
        allowed: Tensor | None,
        keep_masks: tuple[Tensor, ...] | None,
        learns: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """The output and, if `learns`, the weights of each block: in inference they would be the square that blocks avoid.

        With sinks, the last weight is the sink's, which has no value.
        """
        outs, saved = [], []
        for index, (start, stop, first, last) in enumerate(scoring.spans(q.shape[2], k.shape[1])):
            added = None if bias is None else bias[:, :, start:stop, first:last]
            scores = _Blocks.scores(q[:, :, start:stop], k[:, first:last], added, scoring, allowed, start, first)
            if sinks is not None:
                sink = sinks.to(scores.dtype).view(-1, q.shape[1], 1, 1).expand(-1, -1, stop - start, 1).flatten(1, 2)
                scores = torch.cat((scores, sink.repeat(q.shape[0] // sink.shape[0], 1, 1)), -1)
            weights = scores.softmax(-1).to(v.dtype)  # torch's softmax computes in fp32 internally
            dropped = weights if sinks is None else weights[..., :-1]
            dropped = dropped if keep_masks is None else dropped * keep_masks[index]
            outs.append(torch.bmm(dropped, v[:, first:last]).unflatten(1, (q.shape[1], stop - start)))
            if learns:
                saved.append(weights)
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2), saved

    @staticmethod
    def scores(
        q: Tensor, k: Tensor, bias: Tensor | None, scoring: Scoring, allowed: Tensor | None, start: int, first: int
    ) -> Tensor:
        """Scores [N, G · rows, keys] of the query rows from `start` and the keys from `first` on, blocked ones at -inf."""
        group, rows = q.shape[1:3]
        flat, blocked = q.flatten(1, 2), None
        if scoring.causal:
            row = torch.arange(start, start + rows, device=q.device).repeat(group)[:, None]
            key = torch.arange(first, first + k.shape[1], device=q.device)
            blocked = key > row
            blocked = blocked if scoring.window is None else blocked | (row - key >= scoring.window)
        if blocked is not None and scoring.cap is None and bias is None:
            # Adding the mask inside the matrix product saves two passes over the scores.
            triangle = torch.zeros(blocked.shape, dtype=q.dtype, device=q.device).masked_fill(blocked, -torch.inf)
            return torch.baddbmm(triangle.expand(q.shape[0], -1, -1), flat, transposed(k), alpha=scoring.scale)
        scores = torch.bmm(flat * scoring.scale, transposed(k))
        if scoring.cap is not None or bias is not None:
            scores = capped(scores.to(wide_dtype(q.dtype)), scoring.cap)
        if bias is not None:
            by_head = _Blocks.by_head(scores, scoring, group) + bias.unflatten(1, (scoring.kv_heads, group))
            scores = by_head.flatten(0, 1).flatten(1, 2)
        if blocked is not None:
            return scores.masked_fill(blocked, -torch.inf)
        if allowed is None:
            return scores
        seen = allowed[:, :, None, start : start + rows]  # [b, 1, 1, rows, S]
        return _Blocks.by_head(scores, scoring, group).masked_fill(~seen, -torch.inf).flatten(0, 1).flatten(1, 2)

    @staticmethod
    def by_head(scores: Tensor, scoring: Scoring, group: int) -> Tensor:
        """Scores [N, G · rows, keys] as [B, K, G, rows, keys]."""
        return scores.unflatten(1, (group, -1)).unflatten(0, (-1, scoring.kv_heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *saved = ctx.saved_tensors
        scoring, group = ctx.scoring, q.shape[1]
        spans = scoring.spans(q.shape[2], k.shape[1])
        saved_weights, keep_masks = saved[: len(spans)], saved[len(spans) :]
        q_gradient = torch.empty_like(q, memory_format=torch.contiguous_format)
        k_gradient, v_gradient, bias_gradient = None, None, None
        if ctx.bias is not None:
            shape, dtype = ctx.bias
            bias_gradient = torch.zeros(shape, dtype=dtype, device=q.device)
        sinks_gradient = None if ctx.sinks is None else q.new_zeros(scoring.kv_heads * group, dtype=wide_dtype(q.dtype))
        for index, (start, stop, first, last) in reversed(list(enumerate(spans))):
            weights, block = saved_weights[index], q[:, :, start:stop].flatten(1, 2)
            above = gradient[:, :, start:stop].flatten(1, 2)
            dropped = weights if sinks_gradient is None else weights[..., :-1]
            dropped = dropped * keep_masks[index] if ctx.drops else dropped
            v_share = torch.bmm(dropped.transpose(1, 2), above)
            above = torch.bmm(above, transposed(v[:, first:last]))
            above = above * keep_masks[index] if ctx.drops else above
            if sinks_gradient is None:
                above = torch._softmax_backward_data(above, weights, -1, weights.dtype)
            else:
                every = torch._softmax_backward_data(F.pad(above, (0, 1)), weights, -1, weights.dtype)
                above, share = every[..., :-1], _Blocks.by_head(every[..., -1:], scoring, group)
                sinks_gradient += share.sum((0, 3, 4), dtype=sinks_gradient.dtype).flatten()
            if bias_gradient is not None:
                share = _Blocks.by_head(above, scoring, group).flatten(1, 2).to(bias_gradient.dtype)
                share = share.sum(0, keepdim=True) if bias_gradient.shape[0] == 1 else share
                bias_gradient[:, :, start:stop, first:last] = share
            if scoring.cap is not None:  # the scores again: they were not kept
                scores = torch.bmm(block * scoring.scale, transposed(k[:, first:last])).to(wide_dtype(q.dtype))
                above = (above * (1 - (scores / scoring.cap).tanh().square())).to(weights.dtype)
            q_share = torch.bmm(above, k[:, first:last]).mul_(scoring.scale)
            q_gradient[:, :, start:stop] = q_share.unflatten(1, (group, stop - start))
            k_share = torch.bmm(above.transpose(1, 2), block)
            if k_gradient is None and first == 0 and last == k.shape[1]:  # the last block usually saw all keys
                k_gradient, v_gradient = k_share, v_share
                continue
            if k_gradient is None or v_gradient is None:
                k_gradient, v_gradient = torch.zeros_like(k), torch.zeros_like(v)
            k_gradient[:, first:last] += k_share
            v_gradient[:, first:last] += v_share
        assert k_gradient is not None
        sinks_gradient = None if sinks_gradient is None else sinks_gradient.to(ctx.sinks)
        return q_gradient, k_gradient.mul_(scoring.scale), v_gradient, bias_gradient, sinks_gradient, None, None, None


def transposed(x: Float[Tensor, "N S d"]) -> Float[Tensor, "N d S"]:
    """The transpose, for a product. In 16 bits on a CPU, copying a slice first is faster than a product with its transpose."""
    narrow = x.device.type == "cpu" and x.element_size() < 4
    return (x.contiguous() if narrow else x).transpose(1, 2)


class Plain(Kernel):
    """Plain matrix products over blocks of query rows, skipping the keys that no row of a block can see."""

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        if mask.is_open():
            return Lowered("plain", mask, bias=bias)
        window = mask.window()
        causal = mask.is_causal() or window is not None
        allowed = None if causal else mask.dense()
        return Lowered("plain", mask, causal, window, allowed, dead_queries(mask, allowed), bias)

    def attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        rows, heads, queries, _ = q.shape
        kv_heads, group = k.shape[1], heads // k.shape[1]
        # [B·K, H/K, T, d]: heads that share keys are grouped.
        q = q.unflatten(1, (kv_heads, group)).flatten(0, 1)
        allowed, keep_masks = lowered.allowed, None
        if allowed is not None and lowered.dead is not None:
            allowed = allowed | lowered.dead  # a dead row sees everything here; its output is set to 0 below
        scoring = Scoring(self.scale, self.cap, lowered.causal, lowered.window, kv_heads, BLOCK)
        if self.dropout.active:
            spans = scoring.spans(queries, k.shape[2])
            shapes = [(rows, heads, stop - start, last - first) for start, stop, first, last in spans]
            masks = [self.dropout(q.new_ones(shape)).expand(shape) for shape in shapes]
            keep_masks = tuple(keep.unflatten(1, (kv_heads, group)).flatten(0, 1).flatten(1, 2) for keep in masks)
        arguments = (q, k.flatten(0, 1), v.flatten(0, 1), lowered.bias, lowered.sinks, scoring, allowed, keep_masks)
        if torch.is_grad_enabled():
            out: Tensor = _Blocks.apply(*arguments)  # type: ignore[no-untyped-call]
        else:  # the same, without the cost of an autograd function
            out, _ = _Blocks.attend(*arguments)
        out = out.unflatten(0, (rows, kv_heads)).flatten(1, 2)
        return out if lowered.dead is None else out.masked_fill(lowered.dead, 0.0)
