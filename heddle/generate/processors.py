"""Logits processors: a model's rules about special ids, and penalties on the ids of a sequence.

`make_processors` returns those that a model and a config need, in order. Every strategy uses them: sampling on logits, beam
search on log probabilities.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.config.decoding import DecodingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError
from heddle.nn.numeric import on_device
from heddle.text.stream import TextStream

if TYPE_CHECKING:  # both modules import this one
    from heddle.generate.constrain import Guide
    from heddle.generate.stream import DecodingRules
else:
    DecodingRules = Guide = Any

Ends = int | Sequence[int] | None
"""Ids that end a text, in addition to those in the model's config. The first one starts a text whose prompt is empty."""


@dataclass
class TokenSequence:
    """A text that is being generated: its prompt and the ids so far, with all that decides how it continues.

    Attributes:
        number: the index of its prompt.
        ids: prompt and generated ids.
        prompt_length: number of prompt ids.
        max_length: maximum number of ids.
        seed: seed of its random draws.
        rules: which ids may follow, and when it ends.
        start: index of the first id that the model sees.
        source: ids for the encoder of an encoder-decoder; None for other models.
        guide: which ids may follow, if the text is constrained.
        max_tokens: maximum number of generated ids. The context may end the sequence earlier.
        forced: number of generated ids, 0 or 1, that the model is forced to begin with. A guide does not see them.
        echo: whether the log probabilities of its prompt are still to be returned.
        text: decodes the generated ids, and finds stop texts; None: events have no text.
    """

    number: int
    ids: list[int]
    prompt_length: int
    max_length: int
    seed: int
    rules: DecodingRules
    start: int = 0
    source: list[int] | None = None
    guide: Guide | None = None
    max_tokens: int | None = None
    forced: int = 0
    echo: bool = False
    text: TextStream | None = None

    def generated(self) -> list[int]:
        """The generated ids, without a forced first one."""
        return self.ids[self.prompt_length + self.forced :]

    def decode(self) -> str:
        """The text that its last id adds; empty without a decoder of text."""
        # A forced first id, such as the language of a translation, is not part of the answer to a source.
        is_forced = self.forced and self.source is not None and len(self.ids) == self.prompt_length + 1
        return "" if self.text is None or is_forced else self.text.push(self.ids[-1])

    def visible(self) -> list[int]:
        """The ids that the model sees."""
        return self.ids[self.start :]


Sequences = Sequence[TokenSequence]
Scores = Float[Tensor, "B V"]


class Processor(ABC):
    """Changes the scores of the next id. A processor never modifies its input in place.

    Attributes:
        reads: whether it reads the sequences.
    """

    reads = True

    @abstractmethod
    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        """The new scores of the id after each sequence; the same tensor if nothing changes."""

    def waits(self, sequence: TokenSequence, length: int) -> bool:
        """Whether it changes nothing for a continuation of the sequence to `length` ids, whatever they are."""
        return False


class BlockedIds(Processor):
    """Block ids without text, and ids that a model's config bans.

    Args:
        banned: runs of ids. The last id of a run is blocked where the sequence ends with the ids before it.
        ends: ids that end a text. They may be generated although they have no text.
        vocabulary: number of ids that have text; None: all.
        count: V.

    Raises:
        HeddleError: every id is blocked.
    """

    def __init__(
        self, banned: Sequence[Sequence[int]], ends: Collection[int], vocabulary: int | None, count: int
    ) -> None:
        without_text = range(count if vocabulary is None else vocabulary, count)
        self.always = sorted({*without_text} - set(ends) | {run[0] for run in banned if len(run) == 1})
        self.runs = [(list(run[:-1]), run[-1]) for run in banned if len(run) > 1]
        self.reads = bool(self.runs)
        if len(self.always) == count:
            raise HeddleError(
                "every id is banned or has no text, so nothing can be sampled; check config.ids and banned"
            )

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        if self.always:
            scores = scores.index_fill(-1, on_device(self.always, scores.device), -torch.inf)
        ending = [
            (row, last) for row, sequence in enumerate(sequences) for run, last in self.runs if _ends(sequence.ids, run)
        ]
        return _set_scores(scores, ending, -torch.inf)


class ForcedIds(Processor):
    """Force ids at one position: the first of a decoder, or the last of a sequence that reaches its maximum length.

    A forced id gets the score 0, the log probability of certainty. All others get -inf.

    Args:
        ids: the possible ids.
        at: whether the id of a sequence after so many is at that position.
    """

    def __init__(self, ids: Sequence[int], at: Callable[[int, TokenSequence], bool]) -> None:
        self.ids, self.at = list(ids), at

    def applies(self, sequence: TokenSequence) -> bool:
        """Whether the next id of a sequence is forced."""
        return self.at(len(sequence.ids), sequence)

    def waits(self, sequence: TokenSequence, length: int) -> bool:
        """Whether the position is another one."""
        return not self.at(length, sequence)

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        rows = [row for row, sequence in enumerate(sequences) if self.applies(sequence)]
        if not rows:
            return scores
        forced = scores.new_full((scores.shape[-1],), -torch.inf)
        forced = forced.index_fill(0, on_device(self.ids, scores.device), 0.0)
        return scores.index_put((on_device(rows, scores.device),), forced)


class LogitBias(Processor):
    """Add a number to the scores of some ids (OpenAI's `logit_bias`)."""

    reads = False

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        self.bias = dict(bias)

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        ids = on_device(list(self.bias), scores.device)
        values = on_device(list(self.bias.values()), scores.device, scores.dtype)
        bias = scores.new_zeros(scores.shape[-1]).index_copy(0, ids, values)
        return scores + bias


class RepetitionPenalty(Processor):
    """Divide positive scores of a sequence's ids by `penalty` and multiply negative ones (Keskar et al. 2019, 4.1)."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        rows, ids = _indices([(row, id) for row, sequence in enumerate(sequences) for id in set(sequence.ids)], scores)
        old = scores[rows, ids]
        return scores.index_put((rows, ids), torch.where(old < 0, old * self.penalty, old / self.penalty))


class PresencePenalty(Processor):
    """Subtract from the scores of generated ids: `presence` once and `frequency` per occurrence (OpenAI's API reference)."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        counts = [
            (row, id_count)
            for row, sequence in enumerate(sequences)
            for id_count in Counter(sequence.ids[sequence.prompt_length :]).items()
        ]
        if not counts:
            return scores
        rows, ids = _indices([(row, id) for row, (id, _) in counts], scores)
        penalties = [self.presence + self.frequency * count for _, (_, count) in counts]
        return scores.index_put((rows, ids), -on_device(penalties, scores.device, scores.dtype), True)


class NoRepeatNgram(Processor):
    """Block ids that would repeat an n-gram of `length` ids (Paulus et al. 2017, 2.5)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        return _set_scores(
            scores,
            [(row, id) for row, sequence in enumerate(sequences) for id in self._completing(sequence.ids)],
            -torch.inf,
        )

    def _completing(self, ids: list[int]) -> set[int]:
        prefix_length = self.length - 1
        prefix = ids[len(ids) - prefix_length :]
        if len(ids) < prefix_length:
            return set()
        return {ids[end] for end in range(prefix_length, len(ids)) if ids[end - prefix_length : end] == prefix}


class MinTokens(Processor):
    """Block the ids that end a text until `min_tokens` ids are generated."""

    def __init__(self, ends: Collection[int], min_tokens: int) -> None:
        self.ends, self.min_tokens = ends, min_tokens

    def waits(self, sequence: TokenSequence, length: int) -> bool:
        """Whether there are enough."""
        return length - sequence.prompt_length >= self.min_tokens

    def __call__(self, scores: Scores, sequences: Sequences) -> Scores:
        short = [row for row, sequence in enumerate(sequences) if not self.waits(sequence, len(sequence.ids))]
        return _set_scores(scores, [(row, end) for row in short for end in self.ends], -torch.inf)


def make_processors(
    config: DecodingConfig, ids: SpecialIds, ends: Collection[int], vocabulary: int | None, count: int
) -> tuple[Processor, ...]:
    """The processors that a model and a config need, in the order of Hugging Face transformers.

    Args:
        config: the penalties, and ids to prefer or to avoid.
        ids: the model's special ids.
        ends: ids that end a text.
        vocabulary: number of ids that have text; None: all.
        count: V.

    Raises:
        HeddleError: every id is blocked, or an id in the config is out of range.
    """
    if (largest := config.largest_id()) >= count:
        raise HeddleError(f"logit_bias or banned has the id {largest}; ids must be from 0 to {count - 1}")
    # As in Hugging Face transformers, a model cannot ban its own end ids. A user can, to get sequences of the maximum length.
    published = [run for run in ids.banned if len(run) > 1 or run[0] not in ends]
    blocked = BlockedIds((*published, *config.banned), ends, vocabulary, count)
    candidates: list[tuple[bool, Processor]] = [
        (bool(config.logit_bias), LogitBias(config.logit_bias)),
        (config.repetition_penalty != 1, RepetitionPenalty(config.repetition_penalty)),
        (
            bool(config.presence_penalty or config.frequency_penalty),
            PresencePenalty(config.presence_penalty, config.frequency_penalty),
        ),
        (config.no_repeat_ngram is not None, NoRepeatNgram(config.no_repeat_ngram or 1)),
        (bool(blocked.always or blocked.runs), blocked),
        (config.min_tokens > 0 and bool(ends), MinTokens(ends, config.min_tokens)),
        (ids.forced_begin is not None, ForcedIds([ids.forced_begin or 0], lambda length, sequence: length == 1)),
        (
            bool(ids.forced_ends()),
            ForcedIds(ids.forced_ends(), lambda length, sequence: length == sequence.max_length - 1),
        ),
    ]
    return tuple(processor for needed, processor in candidates if needed)


def _ends(ids: list[int], run: list[int]) -> bool:
    return ids[len(ids) - len(run) :] == run


def _indices(places: Sequence[tuple[int, int]], like: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and the ids of these places, as two index tensors."""
    indices = on_device(places, like.device, torch.long).reshape(-1, 2)
    return indices[:, 0], indices[:, 1]


def _set_scores(scores: Scores, places: Sequence[tuple[int, int]], value: float) -> Scores:
    """The scores with `value` at these places; the same tensor if there are none."""
    return scores.index_put(_indices(places, scores), scores.new_full((), value)) if places else scores
