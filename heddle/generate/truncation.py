"""Truncation by the shape of the distribution: `min_p` and typical sampling."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def truncate_rare(scores: Float[Tensor, "B V"], min_p: float | None, typical_p: float | None) -> Float[Tensor, "B V"]:
    """Block ids that are much less probable than the most probable one, then ids that are not typical.

    Args:
        scores: logits, -inf for blocked ids.
        min_p: minimum probability, as a share of the largest one (Nguyen et al. 2024); None: no minimum.
        typical_p: see `typical`; None: all.
    """
    if min_p:
        probabilities = scores.softmax(-1)
        scores = scores.masked_fill(probabilities < min_p * probabilities.amax(-1, keepdim=True), -torch.inf)
    if typical_p is not None and typical_p < 1:
        scores = scores.masked_fill(~typical(scores, typical_p), -torch.inf)
    return scores


def typical(scores: Float[Tensor, "B V"], share: float) -> Bool[Tensor, "B V"]:
    """A mask of the fewest ids with total probability `share` whose surprise, -log p, is nearest to its mean.

    Ties go to the lowest ids (Meister et al. 2023, 4).
    """
    logprobs = scores.log_softmax(-1)
    probabilities = logprobs.exp()
    finite = logprobs.masked_fill(probabilities == 0, 0.0)
    mean = (probabilities * finite).sum(-1, keepdim=True)
    distance = (mean - finite).abs().masked_fill(probabilities == 0, torch.inf)
    order = distance.sort(dim=-1, stable=True).indices
    ordered = probabilities.gather(-1, order)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, ordered.cumsum(-1) - ordered < share)


def largest(scores: Tensor, count: Tensor, smallest: Tensor) -> Tensor:
    """A mask of the `count` largest scores, the smallest of which is `smallest`. Ties go to the lowest ids."""
    mask = scores >= smallest
    # No tie: the usual case. Other devices would wait for the answer.
    if scores.device.type == "cpu" and (mask.sum(-1, keepdim=True) == count).all():
        return mask
    above, equal = scores > smallest, scores == smallest
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def nucleus(scores: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The smallest number of ids whose probabilities sum to `share`, and the smallest logit among them (Holtzman et al. 2020)."""
    vocabulary = scores.shape[-1]
    # On a CPU sorting a large vocabulary is slow, and the share is usually reached early. Other devices would wait to know.
    width = 1024 if scores.device.type == "cpu" else vocabulary
    while True:
        ordered = scores.topk(min(width, vocabulary), dim=-1).values
        probabilities = (ordered - scores.logsumexp(-1, keepdim=True)).exp()
        cumulative = probabilities.cumsum(-1)
        if width >= vocabulary or (cumulative[:, -1] >= share).all():
            break
        width *= 8
    # An id counts if the ids before it do not reach the share.
    count = (cumulative - probabilities < share).sum(-1, keepdim=True).clamp(min=1)
    return count, ordered.gather(-1, count - 1)
