"""Cross-entropy of target ids, including the head, chunk by chunk: the full logits are never in memory."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from heddle.model.device import logits_bytes
from heddle.model.head import Scores
from heddle.nn.numeric import wide_dtype
from heddle.tasks.loss_chunk import LossSettings, OneChunk, check_arguments, in_few, in_whole_tiles, of_chunk


def chunk_rows(positions: int, vocabulary: int, device: str = "cpu") -> int:
    """Rows of logits per chunk; chunks have equal sizes, since a small last one would waste a pass over the table."""
    return -(-positions // -(-positions // max(64, logits_bytes(device) // (4 * vocabulary))))


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradient, if one is needed, together with the loss: each chunk's logits are computed once and then freed."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        settings: LossSettings,
        one_chunk: OneChunk,
    ) -> tuple[Tensor, Tensor]:
        vocab_size, cap, by_onednn, rows, chunk, learns, *_ = settings
        scores = Scores(table, vocab_size, bias, cap, by_onednn, rows).to(features.dtype)
        wide = wide_dtype(features.dtype)
        plain: Any = 0.0
        extra: Any = 0.0
        few = one_chunk is of_chunk and in_few(scores, features.device, settings)
        scores = in_whole_tiles(scores)
        target_logs: list[Tensor] = []
        feature_gradients: list[Tensor] = []
        table_gradient = None
        bias_gradient = None if bias is None or scores.bias is None else torch.zeros_like(scores.bias, dtype=wide)
        # Weight the narrow side of both products: V/D times fewer multiplications.
        learns_table = learns and ctx.needs_input_grad[1]  # False if the table is frozen
        weighted = torch.mul(features, weights, out=torch.empty_like(features)) if learns_table else features
        columns = [tensor.split(chunk) for tensor in (features, weighted, targets, weights)]
        for x, weighted_x, target, weight in zip(*columns, strict=True):
            piece = (x, weighted_x if learns_table else None, target, weight)
            nats, more, of_features, of_table = one_chunk(*piece, scores, bias_gradient, settings, few)
            if few:
                target_logs.append(nats)
            else:
                plain, extra = plain + nats, extra + more
            if of_features is not None:
                feature_gradients.append(of_features)
            if of_table is not None:
                # The sum over chunks needs fp32: in bf16 each addition would round the whole matrix.
                table_gradient = of_table if table_gradient is None else table_gradient.to(wide).add_(of_table)
        if few:
            plain = -torch.dot(torch.cat(target_logs)[:, 0], weights[:, 0].to(wide))
        if learns:
            del weighted, weighted_x, piece, columns  # of as many numbers as the gradients of features
            real = [None if each is None else each[: len(table)] for each in (table_gradient, bias_gradient)]
            ctx.save_for_backward(torch.cat(feature_gradients).mul_(weights), *real)
        ctx.mark_non_differentiable(plain)
        return plain + extra, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor, of_plain: Tensor) -> tuple[Tensor | None, ...]:
        feature_gradient, *others = ctx.saved_tensors
        # A 0-d factor stays fp32 in the product: rounded to bf16 it would bias every gradient below the head.
        # With dimensions it promotes the product to fp32, as the table needs, in a single pass. Autograd casts both.
        of_table, of_bias = (None if each is None else each * factor.reshape([1] * each.dim()) for each in others)
        return feature_gradient * factor, of_table, of_bias, None, None, None, None


def cross_entropy(
    features: Float[Tensor, "N D"],
    targets: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    scores: Scores,
    chunk: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    one_chunk: OneChunk = of_chunk,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sum of weights · -log p(target), with logits = capped(features @ tableᵀ + bias) (L1-24, L2-59).

    Returns two sums: one to minimise, with label smoothing and z-loss, and the plain one to report, without a gradient. Equal to
    torch's `cross_entropy` of the full logits. The gradient, if needed, is computed in the forward pass.

    Args:
        features: vectors to score, N rows of width D, in any precision; the loss is fp32 or wider.
        targets: ids below `scores.vocab_size`.
        weights: 0 where there is no target.
        scores: the head's `scoring(table)`.
        chunk: rows at a time; None: as many as fit into 256 MiB of logits, off the CPU into 512 MiB.
        label_smoothing: ε; the target distribution is 1 - ε + ε/V for the target and ε/V for other ids (Szegedy et al. 2016, 7).
        z_loss: factor of (log Σ exp(logits))², for each target (Chowdhery et al. 2022, 5).
        one_chunk: computes a chunk; it may be compiled.

    Raises:
        HeddleError: an argument has another type or shape; on a CPU also where a target is out of range.
    """
    if not torch.compiler.is_compiling():
        check_arguments(features, targets, weights, scores, (chunk, label_smoothing, z_loss, one_chunk))
    table, bias = scores.table, scores.bias
    chunk = chunk_rows(features.shape[0], table.shape[0], features.device.type) if chunk is None else chunk
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (features, table, bias))
    settings = (scores.vocab_size, scores.cap, scores.by_onednn, scores.rows, chunk, learns, label_smoothing, z_loss)
    return _CrossEntropy.apply(features, table, bias, targets[:, None], weights[:, None], settings, one_chunk)  # type: ignore[no-untyped-call,no-any-return]
