"""Sampled tokens with their log probabilities and the most probable alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from jaxtyping import Float, Int
from torch import Tensor

from heddle.display import displayed
from heddle.generate.processors import TokenSequence
from heddle.nn.numeric import wide_dtype


class NoValidToken(str):
    """An error message: the request's bans and constraints leave no valid next token. The model is not at fault."""


@displayed()
@dataclass(frozen=True)
class SampledToken:
    """A sampled id and its log probability.

    Attributes:
        id: the id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        top: the most probable ids with their log probabilities, best first; the sampling sets their number.
        error: why the id must not be used, or None.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None


def score_samples(
    logits: Float[Tensor, "B V"],
    scores: Float[Tensor, "B V"],
    ids: Int[Tensor, " B"],
    sequences: Sequence[TokenSequence],
    alternatives: int,
) -> list[SampledToken]:
    """The sampled ids, one per sequence, with their log probabilities.

    Args:
        logits: the model's own.
        scores: the logits after the processors. An id with the score -inf is not valid.
        ids: the sampled ids.
        sequences: the sequences that they follow.
        alternatives: number of most probable ids to report with each.
    """
    logprobs = log_probabilities(logits)
    columns = [values.gather(-1, ids[:, None])[:, 0].tolist() for values in (logprobs, scores)]
    rows = zip(sequences, ids.tolist(), *columns, top_logprobs(logprobs, alternatives), strict=True)
    return [
        SampledToken(id, logprob, top, _error(sequence, logprob, score)) for sequence, id, logprob, score, top in rows
    ]


def log_probabilities(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Natural logs of the probabilities softmax(logits), computed in fp32 or wider."""
    return logits.to(wide_dtype(logits.dtype)).log_softmax(-1)


def top_logprobs(logprobs: Float[Tensor, "B V"], count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` most probable ids of each row with their log probabilities, best first."""
    if not count:
        return [()] * len(logprobs)
    top = logprobs.topk(min(count, logprobs.shape[-1]))
    return [tuple(zip(*row, strict=True)) for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


def _error(sequence: TokenSequence, logprob: float, score: float) -> str | None:
    """Why an id with this log probability, and this score after the processors, is not valid."""
    if not isfinite(logprob):
        return "the model's output is NaN or infinite; its weights are broken"
    if score == -inf:
        reason = getattr(sequence.guide, "error", None) or "bans and constraints exclude every token"
        return NoValidToken(f"no token may follow: {reason}")
    return None
