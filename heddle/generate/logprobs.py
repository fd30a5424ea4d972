"""A drawn id and what the model thought of it: its log probability, the most probable alternatives, whether it can be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from jaxtyping import Float, Int
from torch import Tensor

from heddle.display import displayed
from heddle.generate.processors import TokenSequence
from heddle.nn.numeric import wide_dtype


class NoValidToken(str):
    """Why no id may follow a text: what was asked for leaves none, and the model is not at fault."""


@displayed()
@dataclass(frozen=True)
class SampledToken:
    """A drawn id, and its probability.

    Attributes:
        id: the id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        top: the most probable ids with the logs of their probabilities, as many as the sampling asks for, best first.
        broken: why the id is not to be used; None: it is.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    broken: str | None = None


def score_samples(
    logits: Float[Tensor, "B V"],
    scores: Float[Tensor, "B V"],
    ids: Int[Tensor, " B"],
    texts: Sequence[TokenSequence],
    alternatives: int,
) -> list[SampledToken]:
    """These ids, one after each text, with their probabilities.

    Args:
        logits: the model's own.
        scores: the logits after the processors; an id whose score is -inf may not be used.
        ids: the ids.
        texts: the texts.
        alternatives: how many of the most probable ids to report with each.
    """
    logs = log_probabilities(logits)
    columns = [each.gather(-1, ids[:, None])[:, 0].tolist() for each in (logs, scores)]
    rows = zip(texts, ids.tolist(), *columns, top_of(logs, alternatives), strict=True)
    return [SampledToken(id, logprob, top, _fault(text, logprob, score)) for text, id, logprob, score, top in rows]


def log_probabilities(logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Natural logs of the probabilities softmax(logits), computed in fp32 or wider."""
    return logits.to(wide_dtype(logits.dtype)).log_softmax(-1)


def top_of(logs: Float[Tensor, "B V"], count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` most probable ids of each row with the logs of their probabilities, best first."""
    if not count:
        return [()] * len(logs)
    found = logs.topk(min(count, logs.shape[-1]))
    return [tuple(zip(*row, strict=True)) for row in zip(found.indices.tolist(), found.values.tolist(), strict=True)]


def _fault(text: TokenSequence, logprob: float, score: float) -> str | None:
    """Why an id with this log probability, and this score after the processors, cannot be used."""
    if not isfinite(logprob):
        return "the model's output is NaN or infinite; its weights are broken"
    if score == -inf:
        why = getattr(text.guide, "fault", None) or "what is banned and what the text must match leave none"
        return NoValidToken(f"no token may follow: {why}")
    return None
