"""Cross-entropy of the next token, head included, chunk by chunk: the full logits never exist."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from heddle.model.transformer import mask_padding

CHUNK_BYTES = 256 << 20  # fp32 logits of one chunk; smaller chunks save little memory and cost time


def chunk_rows(positions: int, vocabulary: int) -> int:
    """How many positions' logits are held at once: equal chunks, since a small last one would waste a pass over the table."""
    most = max(64, CHUNK_BYTES // (4 * vocabulary))
    chunks = -(-positions // most)
    return -(-positions // chunks)


def _surprise(
    hidden: Tensor, head: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Float[Tensor, "N V"], Float[Tensor, " N"]]:
    """Log-probabilities in fp32 or wider, and -log p of each target."""
    logits = mask_padding(hidden @ head.T, vocab_size)
    log_probabilities = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return log_probabilities, -log_probabilities.gather(1, targets[:, None])[:, 0]


def _in_lines(x: Float[Tensor, "N V"], dtype: torch.dtype) -> Float[Tensor, "N V"]:
    """A copy whose rows start at multiples of 64 elements: a product with its transpose is a fifth faster (V = 50,257)."""
    return x.new_empty(x.shape[0], -(-x.shape[1] // 64) * 64, dtype=dtype)[:, : x.shape[1]].copy_(x)


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, so that each chunk's logits are made once and dropped at once."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int, chunk: int
    ) -> Tensor:
        head = table.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        hidden_gradients, table_gradient = [], None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            weight = weights[part, None]
            log_probabilities, surprise = _surprise(hidden[part], head, targets[part], vocab_size)
            total = total + (surprise * weights[part]).sum()
            gradient = log_probabilities.exp_()  # d surprise / d logits = p - onehot
            gradient.scatter_add_(1, targets[part, None], -torch.ones_like(targets[part, None], dtype=wide))
            gradient = _in_lines(gradient, hidden.dtype)
            # The weights go to the narrow side of both products: V/D times fewer multiplications.
            hidden_gradients.append((gradient @ head * weight).to(hidden.dtype))
            share = gradient.T @ (hidden[part] * weight).to(hidden.dtype)
            # The sum over chunks needs fp32: in bf16 each addition would round the whole matrix again.
            table_gradient = share if table_gradient is None else table_gradient.to(wide).add_(share)
        ctx.save_for_backward(torch.cat(hidden_gradients), table_gradient)
        ctx.table_dtype = table.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_gradient, table_gradient = ctx.saved_tensors
        # A factor without dimensions stays fp32 in the product: cast to bf16 it would tilt every gradient below the head.
        # With dimensions it makes the product fp32, which is what the table wants, in a single pass.
        return (
            hidden_gradient * factor,
            (table_gradient * factor[None, None]).to(ctx.table_dtype),
            None,
            None,
            None,
            None,
        )


def cross_entropy(
    hidden: Float[Tensor, "N D"],
    table: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    vocab_size: int,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Sum of weights · -log p(target), with logits = hidden @ tableᵀ (L1-24, L2-59).

    Equal to torch's `cross_entropy` of the full logits. Entries of the table beyond `vocab_size` have no probability. The
    gradient is computed in the forward pass; where none is wanted, chunks are only scored.

    Args:
        hidden: N positions of width D, in any precision; the loss is fp32 or wider.
        table: the head's matrix, V rows.
        targets: ids below `vocab_size`.
        weights: 0 where there is no target.
        vocab_size: number of real ids.
        chunk: positions at a time; None: as many as fit into 256 MiB of logits.
    """
    chunk = chunk_rows(hidden.shape[0], table.shape[0]) if chunk is None else chunk
    if torch.is_grad_enabled() and (hidden.requires_grad or table.requires_grad):
        return _CrossEntropy.apply(hidden, table, targets, weights, vocab_size, chunk)
    head = table.to(hidden.dtype)
    total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
    for start in range(0, hidden.shape[0], chunk):
        part = slice(start, start + chunk)
        total = total + (_surprise(hidden[part], head, targets[part], vocab_size)[1] * weights[part]).sum()
    return total
