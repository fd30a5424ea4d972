"""Cross-entropy of one chunk of logits, with the gradient of its scores."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.checks import wrong
from heddle.config.train import ProductKind
from heddle.model.head import Scores
from heddle.model.products import is_eager_fp32, of_inputs, of_weights, product
from heddle.model.rows import Rows
from heddle.nn.embedding import check_ids
from heddle.nn.numeric import wide_dtype

LossSettings = tuple[int, float | None, tuple[ProductKind, ...], Rows | None, int, bool, float, float]
"""Vocabulary size, cap, the products by oneDNN, which rows of the table are here, rows of a chunk, whether a gradient is needed,
label smoothing, z-loss factor."""

OneChunk = Callable[..., tuple[Tensor, Tensor | float, Tensor | None, Tensor | None]]


def of_chunk(
    x: Float[Tensor, "N D"],
    weighted_x: Float[Tensor, "N D"] | None,
    target: Int[Tensor, "N 1"],
    weight: Float[Tensor, "N 1"],
    scores: Scores,
    bias_gradient: Float[Tensor, " V"] | None,
    settings: LossSettings,
    few: bool,
) -> tuple[Tensor, Tensor | float, Tensor | None, Tensor | None]:
    """The chunk's sums of weighted nats and of further terms, and the gradients of its features and of the table, if these learn.

    Args:
        weighted_x: x · weight, for the table's gradient; None: the table does not learn.
        bias_gradient: is added to.
        few: whether to save passes over the scores; then log p of each target [N 1] takes the place of the weighted nats.
    """
    _, _, chosen, _, _, learns, *_ = settings
    by_onednn = chosen if chosen and is_eager_fp32(x, scores.table) else ()
    products = product(x, scores.table, scores.bias, by_onednn)
    hidden = scores.cap is None and x.device.type != "cpu"  # padding, whose bias is -inf
    logits = products if hidden else scores.own(products)
    more: Tensor | float = 0.0
    if few:
        nats, gradient = in_few_passes(logits, target, x.dtype if learns else None)
    else:
        nats, more, gradient = with_terms(logits, target, weight, bias_gradient, settings)
    if not learns:
        return nats, more, None, None
    if gradient.dtype != x.dtype:
        gradient = in_lines(gradient, x.dtype).copy_(gradient)
    of_features = of_inputs(gradient, scores.table, by_onednn)
    return nats, more, of_features, None if weighted_x is None else of_weights(gradient, weighted_x, by_onednn)


def _probabilities(logits: Float[Tensor, "N V"], targets: Int[Tensor, "N 1"]) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [N V], -log p of each target and log Σ exp(scores), both [N 1], with one exponential per score.

    All are fp32 or wider. A target's probability may underflow, so its logarithm is derived from the largest score's, which cannot:
    log p = score - log Σ exp(scores).
    """
    wide = wide_dtype(logits.dtype)
    probabilities = logits.softmax(-1, dtype=wide)
    normaliser = logits.amax(-1, keepdim=True).to(wide) - probabilities.amax(-1, keepdim=True).log()
    return probabilities, normaliser - logits.gather(1, targets).to(wide), normaliser


def _joint_probabilities(
    logits: Float[Tensor, "N P"], places: Int[Tensor, "N 1"], here: Tensor, rows: Rows
) -> tuple[Tensor, Tensor, Tensor]:
    """The same if processes divide the vocabulary: this one has P of the V scores, and the targets in `places` that are `here`."""
    wide = wide_dtype(logits.dtype)
    highest = rows.largest(logits.amax(-1, keepdim=True).to(wide))
    powers = (logits.to(wide) - highest).exp_()
    score = logits.gather(1, places).to(wide).masked_fill(~here, 0.0)
    total, score = rows.sum(torch.cat((powers.sum(-1, keepdim=True), score), 1)).split(1, 1)
    normaliser = highest + total.log()
    return powers.div_(total), normaliser - score, normaliser


def in_lines(x: Float[Tensor, "N V"], dtype: torch.dtype) -> Float[Tensor, "N V"]:
    """Memory for x in `dtype`, with rows that start at multiples of 64 elements: this makes products with the transpose a fifth
    faster in bf16 (V = 50,257), but not in fp32, so a tensor that already has the dtype is returned itself.
    """
    rows, width = x.shape
    return x if x.dtype == dtype else x.new_empty(rows, -(-width // 64) * 64, dtype=dtype)[:, :width]


def in_whole_tiles(scores: Scores) -> Scores:
    """Off the CPU, a table with rows of zeros up to a multiple of 64: a GPU multiplies matrices in tiles, and takes four times as
    long if rows of logits do not start at multiples of 16 bytes (50,257 ids, bf16, H200)."""
    if scores.table.device.type == "cpu":
        return scores
    rows, real = -len(scores.table) % 64, scores.real
    table = F.pad(scores.table, (0, 0, 0, rows)) if rows else scores.table
    if len(table) > real:  # padding gets its -inf in the product
        bias = table.new_zeros(real) if scores.bias is None else scores.bias[:real]
        return replace(scores, table=table, bias=F.pad(bias, (0, len(table) - real), value=-torch.inf))
    return scores


def saves_passes(device: torch.device) -> bool:
    """Whether few passes over the scores matter more than few exponentials: not on a CPU, nor if a compiler joins the passes."""
    return device.type != "cpu" and not torch.compiler.is_compiling()


def in_few(scores: Scores, device: torch.device, settings: LossSettings) -> bool:
    """Whether few passes suffice, and matter."""
    *_, smoothing, z = settings
    plain = scores.cap is None and scores.bias is None and scores.rows is None
    return plain and saves_passes(device) and not (smoothing or z)


def with_terms(
    logits: Float[Tensor, "N V"],
    target: Int[Tensor, "N 1"],
    weight: Float[Tensor, "N 1"],
    bias_gradient: Float[Tensor, " V"] | None,
    settings: LossSettings,
) -> tuple[Tensor, Tensor | float, Float[Tensor, "N V"]]:
    """The chunk's sums of weighted nats and of further terms, and the gradient of its scores if one is needed; the bias's gradient
    is added to."""
    vocab_size, cap, _, rows, _, learns, smoothing, z = settings
    wide = wide_dtype(logits.dtype)
    more: Tensor | float = 0.0
    real, of_target = vocab_size, torch.full_like(weight, smoothing - 1, dtype=wide)
    if rows is None:
        gradient, surprise, normaliser = _probabilities(logits, target)
    else:
        real, (target, here) = rows.real, rows.places(target)
        of_target = of_target.masked_fill(~here, 0.0)
        gradient, surprise, normaliser = _joint_probabilities(logits, target, here, rows)
    nats = (surprise * weight).sum()
    if smoothing or z:
        # -log p of the target gives way to the mean of -log p over all real entries.
        total = logits[:, :real].sum(-1, keepdim=True, dtype=wide)
        even = normaliser - (total if rows is None else rows.sum(total)) / vocab_size - surprise
        more = ((smoothing * even + z * normaliser**2) * weight).sum()
    if not learns:
        return nats, more, gradient
    # d surprise / d logits = p - onehot, d normaliser / d logits = p
    gradient = gradient * (1 + 2 * z * normaliser) if z else gradient
    gradient.scatter_add_(1, target, of_target)
    if smoothing:
        gradient[:, :real] -= smoothing / vocab_size
    if cap is not None:
        # The derivative of cap · tanh(x / cap). At padding, where logits are -inf, the gradient is 0 anyway.
        gradient *= 1 - (logits.to(wide).clamp(min=-cap) / cap) ** 2
    if bias_gradient is not None:
        bias_gradient += (gradient * weight).sum(0)
    return nats, more, gradient


def in_few_passes(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, "N 1"], dtype: torch.dtype | None
) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N V"]]:
    """log p of each target, and the gradient of the sum of -log p in `dtype`; with None, no gradient but other numbers.

    A target's gradient p - 1 is computed before it is rounded; the difference of a rounded p and 1 would have few digits.
    """
    logs = logits.log_softmax(-1, dtype=wide_dtype(logits.dtype))
    log_p = logs.gather(1, targets)
    if dtype is None:
        return log_p, logs
    of_targets = torch.expm1(log_p, out=log_p.new_empty(log_p.shape, dtype=dtype))
    return log_p, torch.exp(logs, out=in_lines(logs, dtype)).scatter_(1, targets, of_targets)


def check_arguments(features: Tensor, targets: Tensor, weights: Tensor, scores: Scores, more: tuple[Any, ...]) -> None:
    """Refuse arguments that would fail deeper inside or silently broadcast; each feature needs one target and one weight."""
    if not isinstance(features, Tensor) or not features.is_floating_point() or features.dim() != 2:
        raise wrong("cross_entropy", "features", features, "a tensor of floating-point numbers of shape [N D]")
    shape, bias = getattr(getattr(scores, "table", None), "shape", ()), getattr(scores, "bias", None)
    if shape[1:] != features.shape[1:] or getattr(bias, "shape", bias) not in (None, shape[:1]):
        raise wrong("cross_entropy", "scores", scores, "the result of head.scoring(table), for features of this width")
    check_ids("targets", targets, scores.vocab_size, tuple(features.shape[:1]), "cross_entropy")
    if not isinstance(weights, Tensor) or weights.shape != targets.shape or not weights.is_floating_point():
        raise wrong("cross_entropy", "weights", weights, f"a floating-point number for each of {len(targets)} targets")
    chunk, label_smoothing, z_loss, one_chunk = more
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise wrong("cross_entropy", "chunk", chunk, "a whole number of at least 1, or None")
    if not callable(one_chunk):
        raise wrong("cross_entropy", "one_chunk", one_chunk, "a function such as of_chunk")
    for name, value in (("label_smoothing", label_smoothing), ("z_loss", z_loss)):
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise wrong("cross_entropy", name, value, "a number from 0 to 1")
