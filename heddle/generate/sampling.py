"""Sampling from logits: temperature, truncation, and the random draw."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import checked, wrong
from heddle.config.decoding import SamplingConfig
from heddle.generate.truncation import truncate_rare
from heddle.nn.numeric import on_device, wide_dtype

Key = tuple[int, int]  # a row's seed, and the position of the token to draw


def choose(logits: Float[Tensor, "B V"], sampling: SamplingConfig, keys: Sequence[Key]) -> Int[Tensor, " B"]:
    """The next id of each row: `process`, then `draw`. At temperature 0, the lowest id with the largest logit."""
    return logits.argmax(-1) if sampling.temperature == 0 else draw(process(logits, sampling), keys)


@checked()
def process(logits: Float[Tensor, "B V"], sampling: SamplingConfig) -> Float[Tensor, "B V"]:
    """Logits in float64, or off the CPU in fp32, with -inf for ids that must not be sampled (L2-60).

    In this order, as in Hugging Face transformers:

    1. Divide by the temperature.
    2. Keep the `top_k` largest logits.
    3. Keep the fewest ids whose probabilities sum to `top_p` (Holtzman et al. 2020).
    4. Block ids with less than `min_p` times the largest probability (Nguyen et al. 2024).
    5. Keep the fewest ids with total probability `typical_p` whose surprise, -log p, is nearest to its mean (Meister et al. 2023).

    Ties go to the lowest ids, so temperature 0 is the argmax with ties to the lowest id (L0-74). Entries of -inf remain -inf.
    """
    scores = logits.to(precision(logits))
    if sampling.temperature == 0:
        return torch.full_like(scores, -torch.inf).scatter(-1, scores.argmax(-1, keepdim=True), 0.0)
    if sampling.temperature != 1:
        # Subtract the largest first, so that no temperature is too small to divide by.
        temperature = max(sampling.temperature, torch.finfo(scores.dtype).tiny)
        scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if sampling.top_k is not None:
        smallest = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(~_largest(scores, torch.full_like(smallest, sampling.top_k), smallest), -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = scores.masked_fill(~_largest(scores, *_nucleus(scores, sampling.top_p)), -torch.inf)
    return truncate_rare(scores, sampling.min_p, sampling.typical_p)


@checked()
def draw(logits: Float[Tensor, "B V"], keys: Sequence[Key]) -> Int[Tensor, " B"]:
    """Draw one id for each row, with the probabilities softmax(logits).

    A row's randomness depends only on its key, so a row gets the same ids alone as in a batch. One uniform number is mapped to an
    id by the inverse of the cumulative distribution over ids in ascending order.
    """
    if len(keys) != logits.shape[0]:
        raise wrong("draw", "keys", keys, f"one pair of seed and position for each of {logits.shape[0]} rows")
    probabilities, levels = logits.to(precision(logits)).softmax(-1), [uniform(*key) for key in keys]
    if logits.device.type != "cpu":
        return at_levels(probabilities, levels)
    # An id with probability 0 must not be sampled, however the cumulative sum next to it is rounded.
    cumulative = probabilities.cumsum(-1).masked_fill_(probabilities == 0, 0.0)
    reached = cumulative > torch.tensor(levels, dtype=torch.float64)[:, None] * cumulative.amax(-1, keepdim=True)
    return reached.view(torch.uint8).argmax(-1)  # the first id that reaches the level


def precision(logits: Tensor) -> torch.dtype:
    """The precision to sample in: float64 on a CPU; elsewhere, where it is slow or missing, fp32 or that of wider logits."""
    return torch.float64 if logits.device.type == "cpu" else wide_dtype(logits.dtype)


def at_levels(probabilities: Float[Tensor, "B V"], levels: Sequence[float]) -> Int[Tensor, " B"]:
    """The first id of each row at which the cumulative distribution exceeds the level.

    Probabilities are rounded to multiples of 2^-40. So their sums are exact in any order, and a GPU draws the same ids each time.
    Sums in fp32 would miss the CPU's id six to fifty times as often.
    """
    cumulative = (probabilities * (1 << 40)).long().cumsum(-1)
    level = on_device([[int(level * (1 << 32))] for level in levels], probabilities.device)
    # Both factors have 32 bits at most, so the product has no more than 63.
    reached = cumulative > ((cumulative[:, -1:] >> 10) * level >> 22)
    return reached.view(torch.uint8).argmax(-1)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same on every machine: Philox keyed by the seed (Salmon et al. 2011), at `position`."""
    return np.random.Generator(np.random.Philox(key=seed, counter=position)).random()


def _largest(scores: Tensor, count: Tensor, smallest: Tensor) -> Tensor:
    """A mask of the `count` largest scores, the smallest of which is `smallest`. Ties go to the lowest ids."""
    mask = scores >= smallest
    # No tie: the usual case. Other devices would wait for the answer.
    if scores.device.type == "cpu" and (mask.sum(-1, keepdim=True) == count).all():
        return mask
    above, equal = scores > smallest, scores == smallest
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def _nucleus(scores: Tensor, share: float) -> tuple[Tensor, Tensor]:
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
