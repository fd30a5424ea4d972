"""Truncation by what a distribution looks like, beside the largest ids and the nucleus of `sampling`."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def rarer(scores: Float[Tensor, "B V"], min_p: float | None, typical_p: float | None) -> Float[Tensor, "B V"]:
    """Block ids that are much less probable than the most probable one, then those that are not typical. None: blocks nothing.

    Args:
        scores: logits, -inf for ids that are blocked already.
        min_p: least probability, as a share of the largest one (Nguyen et al. 2024).
        typical_p: see `typical`.
    """
    if min_p:
        weight = scores.softmax(-1)
        scores = scores.masked_fill(weight < min_p * weight.amax(-1, keepdim=True), -torch.inf)
    if typical_p is not None and typical_p < 1:
        scores = scores.masked_fill(~typical(scores, typical_p), -torch.inf)
    return scores


def typical(scores: Float[Tensor, "B V"], share: float) -> Bool[Tensor, "B V"]:
    """A mask of the fewest ids with probabilities that reach `share`: those whose surprise, -log p, is nearest to its mean.

    Among equals the lowest ids are kept (Meister et al. 2023, 4).
    """
    logs = scores.log_softmax(-1)
    weight = logs.exp()
    known = logs.masked_fill(weight == 0, 0.0)
    distance = ((weight * known).sum(-1, keepdim=True) - known).abs().masked_fill(weight == 0, torch.inf)
    order = distance.sort(dim=-1, stable=True).indices
    weight = weight.gather(-1, order)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, weight.cumsum(-1) - weight < share)
