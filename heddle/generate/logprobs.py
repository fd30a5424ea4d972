"""What the token loop returns: sampled tokens with their log probabilities and the most probable alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.display import displayed
from heddle.generate.processors import TokenSequence
from heddle.nn.numeric import wide_dtype

Finish = Literal["end", "stop", "length", "context", "broken"]


class NoValidToken(str):
    """An error message: the request's bans and constraints leave no valid next token. The model is not at fault."""


@displayed()
@dataclass(frozen=True)
class Event:
    """One sampled token.

    Attributes:
        row: the index of its prompt.
        token: its id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        finish: why the row ends with this token, or None. `end`: it is an end of text; `stop`: the text has come to a stop text, or
            meets its constraint; `length`: it is the last of `max_tokens`; `context`: the context is full; `broken`: there is no
            valid token, and `error` says why.
        top: the most probable ids with their log probabilities, best first, if the sampling asks for them.
        prompt: for the first token of a row with `echo`: all tokens of its prompt but the first, as events.
        error: why the row is broken.
        text: complete characters that the token adds, if the row has text. The texts of a row's events, joined, are its text.
    """

    row: int
    token: int
    logprob: float
    finish: Finish | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt: "tuple[Event, ...]" = ()
    error: str | None = None
    text: str = ""


def score_samples(
    logits: Float[Tensor, "B V"], scores: Float[Tensor, "B V"], ids: Int[Tensor, " B"], alternatives: int
) -> Float[Tensor, "B n"]:
    """All about the sampled ids in one tensor, so that the device is waited for once: see `read_samples`.

    Args:
        logits: the model's own.
        scores: the logits after the processors. An id with the score -inf is not valid.
        ids: the sampled ids.
        alternatives: number of most probable ids to report with each.
    """
    logprobs, ids = log_probabilities(logits), ids[:, None]
    columns = [ids, logprobs.gather(-1, ids), scores.gather(-1, ids)]
    if alternatives:
        top = logprobs.topk(min(alternatives, logprobs.shape[-1]))
        columns += [top.indices, top.values]
    # fp32 holds every whole number up to 2^24, so ids are exact.
    return torch.cat([column.to(logprobs.dtype) for column in columns], -1)


def read_samples(samples: Sequence[Sequence[float]], sequences: Sequence[TokenSequence]) -> list[Event]:
    """The sampled ids, one per sequence, with their log probabilities; `broken` where an id is not valid.

    Args:
        samples: of each, the id, its log probability, its score, and the most probable ids followed by theirs.
        sequences: the sequences that they follow.
    """
    events = []
    for sequence, (id, logprob, score, *rest) in zip(sequences, samples, strict=True):
        count, error = len(rest) // 2, _error(sequence, logprob, score)
        top = tuple(zip(map(int, rest[:count]), rest[count:], strict=True))
        events.append(Event(sequence.number, int(id), logprob, "broken" if error else None, top, (), error))
    return events


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
