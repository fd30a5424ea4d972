"""From logits to a token: which tokens may be drawn, and the draw."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import checked, wrong
from heddle.config.decoding import SamplingConfig
from heddle.generate.truncation import rarer

Key = tuple[int, int]  # a row's seed, and the position in its text of the token to draw


def choose(logits: Float[Tensor, "B V"], sampling: SamplingConfig, keys: Sequence[Key]) -> Int[Tensor, " B"]:
    """The next id of each row: `draw` from what `process` leaves.

    At temperature 0 neither is needed: it is the first of the largest logits, in any precision.
    """
    return logits.argmax(-1) if sampling.temperature == 0 else draw(process(logits, sampling), keys)


@checked()
def process(logits: Float[Tensor, "B V"], sampling: SamplingConfig) -> Float[Tensor, "B V"]:
    """Logits in float64, with -inf for ids that may not be drawn (L2-60).

    In this order, as in Hugging Face transformers: divide by the temperature; block all but the `top_k` largest; of the rest,
    block all but the fewest whose probabilities sum to `top_p` (Holtzman et al. 2020); those with less than `min_p` times the
    largest probability (Nguyen et al. 2024); all but the fewest with the share `typical_p` whose surprise, -log p, is nearest
    to its mean (Meister et al. 2023). Among equals the lowest ids are kept, so that temperature 0 is the argmax with ties to
    the lowest id (L0-74). Entries of -inf remain -inf.
    """
    scores = logits.double()
    if sampling.temperature == 0:
        return torch.full_like(scores, -torch.inf).scatter(-1, scores.argmax(-1, keepdim=True), 0.0)
    if sampling.temperature != 1:
        # Subtract the largest first, so that no temperature is too small to divide by.
        scores = (scores - scores.amax(-1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None:
        least = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(~_largest(scores, torch.full_like(least, sampling.top_k), least), -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = scores.masked_fill(~_largest(scores, *_nucleus(scores, sampling.top_p)), -torch.inf)
    return rarer(scores, sampling.min_p, sampling.typical_p)


@checked()
def draw(logits: Float[Tensor, "B V"], keys: Sequence[Key]) -> Int[Tensor, " B"]:
    """Draw one id for each row, with the probabilities softmax(logits).

    A row's randomness depends only on its key, so a row draws the same ids alone as in a batch. It is one uniform number,
    mapped to an id by the inverse cumulative distribution over ids in ascending order.
    """
    if len(keys) != logits.shape[0]:
        raise wrong("draw", "keys", keys, f"one pair of seed and position for each of {logits.shape[0]} rows")
    weight = logits.double().softmax(-1)
    # An id with probability 0 must not be drawn, however the cumulative sum next to it is rounded.
    place = weight.cumsum(-1).masked_fill_(weight == 0, 0.0)
    level = torch.tensor([uniform(*key) for key in keys], dtype=torch.float64, device=logits.device)[:, None]
    reached = place > level * place.amax(-1, keepdim=True)
    return reached.view(torch.uint8).argmax(-1)  # the first


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same on every machine: Philox keyed by the seed (Salmon et al. 2011), at `position`."""
    return np.random.Generator(np.random.Philox(key=seed, counter=position)).random()


def _largest(scores: Tensor, count: Tensor, least: Tensor) -> Tensor:
    """A mask of the `count` largest, of which `least` is the smallest; among equals the lowest ids."""
    enough = scores >= least
    if (enough.sum(-1, keepdim=True) == count).all():  # no tie: the usual case
        return enough
    above, equal = scores > least, scores == least
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def _nucleus(scores: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The smallest number of ids whose probabilities reach `share`, and the least logit among them (Holtzman et al. 2020)."""
    width, vocabulary = 1024, scores.shape[-1]
    while True:  # the share is usually reached early, and sorting a large vocabulary is slow
        ordered = scores.topk(min(width, vocabulary), dim=-1).values
        weight = (ordered - scores.logsumexp(-1, keepdim=True)).exp()
        reached = weight.cumsum(-1)
        if width >= vocabulary or (reached[:, -1] >= share).all():
            break
        width *= 8
    count = (reached - weight < share).sum(-1, keepdim=True).clamp(min=1)  # ids before which the share is not reached
    return count, ordered.gather(-1, count - 1)
