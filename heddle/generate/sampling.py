"""Sampling from logits: temperature, truncation, and the random draw."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import checked, wrong
from heddle.config.decoding import SamplingConfig
from heddle.generate.levels import at_levels, precision, uniform
from heddle.generate.truncation import largest, nucleus, truncate_rare

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
        scores = scores.masked_fill(~largest(scores, torch.full_like(smallest, sampling.top_k), smallest), -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = scores.masked_fill(~largest(scores, *nucleus(scores, sampling.top_p)), -torch.inf)
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
