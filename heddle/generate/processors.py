"""What changes scores before a token is chosen: a model's rules about special ids, and penalties on what a text contains.

`processors` makes those that apply to a model and a config, in the order in which they are applied. Every strategy uses them:
sampling on logits, beam search on log probabilities.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.config.decoding import DecodingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError

Ends = int | Sequence[int] | None
"""Ids that end a text, besides those of a model's config; the first one starts a text whose prompt is empty."""


@dataclass
class TokenSequence:
    """A text as it grows.

    Attributes:
        number: the number of its prompt.
        ids: the prompt's and those generated so far.
        given: how many ids the prompt has.
        last: how many ids it may have at most.
        seed: keys its draws.
        start: index of the first id that the model sees.
        source: what the encoder of an encoder-decoder reads; None for other models.
        guide: which ids may follow, if the text is constrained (`heddle.generate.constrain.Guide`).
        most: how many ids to add at most; the context may end the text before.
        opened: how many of the generated ids, 0 or 1, the model is forced to begin with; they are no part of what a guide reads.
    """

    number: int
    ids: list[int]
    given: int
    last: int
    seed: int
    start: int = 0
    source: list[int] | None = None
    guide: Any = None
    most: int | None = None
    opened: int = 0

    def written(self) -> list[int]:
        """The generated ids, without one that the model is forced to begin with."""
        return self.ids[self.given + self.opened :]

    def visible(self) -> list[int]:
        """The ids that the model sees."""
        return self.ids[self.start :]


Texts = Sequence[TokenSequence]
Scores = Float[Tensor, "B V"]


class Processor(ABC):
    """Scores of the next id in, scores out. A processor never changes the tensor that it is given.

    Attributes:
        reads: whether it looks at the texts, so that they must be up to date.
    """

    reads = True

    @abstractmethod
    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        """The scores of the id after each text, or the same tensor if there is nothing to change."""


class Blocked(Processor):
    """Ids that are never generated: those without text, and those that a model's config bans.

    Args:
        banned: runs of ids; the last id of a run is blocked where the text ends with the ids before it.
        ends: ids that may be generated although they have no text: those that end one.
        vocabulary: how many ids have text; None: all.
        count: V.

    Raises:
        HeddleError: no id is left.
    """

    def __init__(
        self, banned: Sequence[Sequence[int]], ends: Collection[int], vocabulary: int | None, count: int
    ) -> None:
        textless = range(count if vocabulary is None else vocabulary, count)
        self.always = sorted({*textless} - set(ends) | {run[0] for run in banned if len(run) == 1})
        self.runs = [(list(run[:-1]), run[-1]) for run in banned if len(run) > 1]
        self.reads = bool(self.runs)
        if len(self.always) == count:
            raise HeddleError("every id is banned or has no text, so nothing can be drawn; check config.ids and banned")

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        if self.always:
            scores = scores.index_fill(-1, torch.tensor(self.always, device=scores.device), -torch.inf)
        ending = [(row, last) for row, text in enumerate(texts) for run, last in self.runs if _ends(text.ids, run)]
        return _put(scores, ending, -torch.inf)


class Forced(Processor):
    """Ids that must be generated in one place: a decoder's first, or the last of a text that reaches its largest length.

    Such an id gets the score 0, a log probability of certainty, and all others -inf.

    Args:
        ids: the possible ids.
        here: whether the next id of a text is in that place.
    """

    def __init__(self, ids: Sequence[int], here: Callable[[TokenSequence], bool]) -> None:
        self.ids, self.here = list(ids), here

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        rows = [row for row, text in enumerate(texts) if self.here(text)]
        if not rows:
            return scores
        forced = scores.new_full((scores.shape[-1],), -torch.inf)
        forced[self.ids] = 0
        return scores.index_put((torch.tensor(rows, device=scores.device),), forced)


class Biased(Processor):
    """Add a number to the scores of some ids (OpenAI's `logit_bias`)."""

    reads = False

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        self.bias = dict(bias)

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        more = scores.new_zeros(scores.shape[-1])
        more[list(self.bias)] = torch.tensor(list(self.bias.values()), dtype=scores.dtype, device=scores.device)
        return scores + more


class Repetition(Processor):
    """Divide positive scores of a text's ids by `penalty` and multiply negative ones (Keskar et al. 2019, 4.1)."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        rows, ids = _places([(row, id) for row, text in enumerate(texts) for id in set(text.ids)], scores)
        found = scores[rows, ids]
        return scores.index_put((rows, ids), torch.where(found < 0, found * self.penalty, found / self.penalty))


class Used(Processor):
    """Subtract from the scores of generated ids: `presence` once, and `frequency` for each time (OpenAI's API reference)."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        counts = [(row, each) for row, text in enumerate(texts) for each in Counter(text.ids[text.given :]).items()]
        if not counts:
            return scores
        rows, ids = _places([(row, id) for row, (id, _) in counts], scores)
        less = [self.presence + self.frequency * count for _, (_, count) in counts]
        return scores.index_put((rows, ids), -torch.tensor(less, dtype=scores.dtype, device=scores.device), True)


class NoRepeat(Processor):
    """Block ids that would complete a run of `length` ids that the text already contains (Paulus et al. 2017, 2.5)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        return _put(
            scores, [(row, id) for row, text in enumerate(texts) for id in self._completing(text.ids)], -torch.inf
        )

    def _completing(self, ids: list[int]) -> set[int]:
        before = self.length - 1
        run = ids[len(ids) - before :]
        if len(ids) < before:
            return set()
        return {ids[end] for end in range(before, len(ids)) if ids[end - before : end] == run}


class Shortest(Processor):
    """Block the ids that end a text until it has grown by `least` ids."""

    def __init__(self, ends: Collection[int], least: int) -> None:
        self.ends, self.least = ends, least

    def __call__(self, scores: Scores, texts: Texts) -> Scores:
        short = [row for row, text in enumerate(texts) if len(text.ids) - text.given < self.least]
        return _put(scores, [(row, end) for row in short for end in self.ends], -torch.inf)


def make_processors(
    config: DecodingConfig, ids: SpecialIds, ends: Collection[int], vocabulary: int | None, count: int
) -> tuple[Processor, ...]:
    """The processors that apply, in the order of Hugging Face transformers.

    Args:
        config: the penalties, and ids to prefer or to avoid.
        ids: the model's special ids.
        ends: ids that end a text.
        vocabulary: how many ids have text; None: all.
        count: V.

    Raises:
        HeddleError: no id may be generated, or the config names one that the model does not have.
    """
    if (largest := config.largest_id()) >= count:
        raise HeddleError(f"logit_bias or banned has the id {largest}; ids must be from 0 to {count - 1}")
    # A model cannot ban its own ends, as in Hugging Face transformers; a user can, for texts of the largest length.
    published = [run for run in ids.banned if len(run) > 1 or run[0] not in ends]
    blocked = Blocked((*published, *config.banned), ends, vocabulary, count)
    found: list[tuple[bool, Processor]] = [
        (bool(config.logit_bias), Biased(config.logit_bias)),
        (config.repetition_penalty != 1, Repetition(config.repetition_penalty)),
        (
            bool(config.presence_penalty or config.frequency_penalty),
            Used(config.presence_penalty, config.frequency_penalty),
        ),
        (config.no_repeat_ngram is not None, NoRepeat(config.no_repeat_ngram or 1)),
        (bool(blocked.always or blocked.runs), blocked),
        (config.min_tokens > 0 and bool(ends), Shortest(ends, config.min_tokens)),
        (ids.forced_begin is not None, Forced([ids.forced_begin or 0], lambda text: len(text.ids) == 1)),
        (bool(ids.forced_ends()), Forced(ids.forced_ends(), lambda text: len(text.ids) == text.last - 1)),
    ]
    return tuple(processor for applies, processor in found if applies)


def _ends(ids: list[int], run: list[int]) -> bool:
    return ids[len(ids) - len(run) :] == run


def _places(places: Sequence[tuple[int, int]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and ids of these places, as indices into scores."""
    both = torch.tensor(places, dtype=torch.long, device=like.device).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _put(scores: Scores, places: Sequence[tuple[int, int]], value: float) -> Scores:
    """The scores with `value` in these places; the same tensor if there are none."""
    return scores.index_put(_places(places, scores), scores.new_tensor(value)) if places else scores
