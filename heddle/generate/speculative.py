"""Guesses of next tokens, which a model confirms several at a time (Leviathan et al. 2023, Chen et al. 2023).

The model draws after each guessed continuation as it would have drawn without guesses, by the same seed and position, and keeps
its own draws up to the first that was guessed wrong. So the text is the same with and without guesses, token for token, greedy
or sampled, whatever the guesses are; they decide only how many passes it takes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from heddle.checks import at_least, checked
from heddle.errors import HeddleError
from heddle.generate.feed import feed
from heddle.generate.prefill import draw_each
from heddle.generate.processors import TokenSequence
from heddle.generate.stream import DecodingRules
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer


@runtime_checkable
class DraftSource(Protocol):
    """Guesses the ids that follow texts."""

    def propose(
        self, texts: Sequence[TokenSequence], decodings: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        """Guesses after each text, at most `room[i]` of them, possibly none.

        Args:
            texts: the texts, each with at least one id that the model has not read.
            decodings: how each is continued.
            room: how many guesses have room in the context and in the longest text.
        """
        ...


class PromptLookup:
    """Guesses that a text goes on as it did where its last ids stood before (prompt look-up; Saxena 2023).

    Args:
        count: ids to guess.
        longest: ids to look for, of the text's end; with fewer matching, fewer are tried, down to `shortest`.
        shortest: the fewest ids that must match.
    """

    @checked(count=at_least(1), longest=at_least(1), shortest=at_least(1))
    def __init__(self, count: int = 10, longest: int = 3, shortest: int = 2) -> None:
        self.count, self.longest, self.shortest = count, longest, shortest

    def propose(
        self, texts: Sequence[TokenSequence], decodings: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        return [self._after(text.visible())[:most] for text, most in zip(texts, room, strict=True)]

    def _after(self, ids: list[int]) -> list[int]:
        for length in range(self.longest, self.shortest - 1, -1):
            tail = ids[len(ids) - length :]
            found: list[int] = []
            for end in range(len(ids) - 1, length - 1, -1):  # the latest place that is far enough from the text's end
                if len(found) < self.count and ids[end - 1] == tail[-1] and ids[end - length : end] == tail:
                    found = max(found, ids[end : end + self.count], key=len)
            if found:
                return found
        return []


class DraftModel:
    """Guesses what a smaller model of the same vocabulary would draw, by the same seed and position.

    Args:
        model: the smaller model, used in evaluation mode.
        count: ids to guess in each step.

    Raises:
        HeddleError: the model reads a source, or cannot take tokens back.
    """

    @checked(count=at_least(1))
    def __init__(self, model: Transformer, count: int = 4) -> None:
        model.check_predicts_next()
        self.model, self.count, self.context = model, count, model.config.context
        self.cache = model.new_cache(0)
        self.read: dict[int, list[int]] = {}  # by the number of the row, in the order of the cache
        if not self.cache.truncates or self.cache.prefix:
            raise HeddleError("a draft model must be causal, without windows or recurrent layers")

    @torch.inference_mode()
    def propose(
        self, texts: Sequence[TokenSequence], decodings: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        """See `DraftSource`.

        Raises:
            HeddleError: the models' vocabularies differ.
        """
        fits = [
            most > 0 and len(text.visible()) + self.count <= self.context
            for text, most in zip(texts, room, strict=True)
        ]
        some = [text for text, fit in zip(texts, fits, strict=True) if fit]
        ways = [decoding for decoding, fit in zip(decodings, fits, strict=True) if fit]
        if any(way.vocab_size != self.model.vocab_size for way in ways):
            raise HeddleError(f"the draft model has {self.model.vocab_size} ids, the model {ways[0].vocab_size}")
        guessed = iter(self._guess(some, ways) if some else ())
        return [next(guessed)[:most] if fit else [] for fit, most in zip(fits, room, strict=True)]

    def _guess(self, texts: Sequence[TokenSequence], decodings: Sequence[DecodingRules]) -> list[list[int]]:
        pieces = self._align(texts)
        guessed = [replace(text, ids=list(text.ids)) for text in texts]
        with evaluating(self.model):
            for _ in range(self.count):
                logits = feed(self.model, self.cache, pieces)
                for text, drawn in zip(guessed, draw_each(decodings, guessed, logits), strict=True):
                    text.ids.append(drawn.id)
                pieces = [text.ids[-1:] for text in guessed]
        self.read = {text.number: text.visible()[:-1] for text in guessed}
        return [text.ids[-self.count :] for text in guessed]

    def _align(self, texts: Sequence[TokenSequence]) -> list[list[int]]:
        """Give the cache a row for each text, with what it has read of it; return what it has not."""
        known = {number: place for place, number in enumerate(self.read)}
        old = [text.number for text in texts if text.number in known]
        new = [text.number for text in texts if text.number not in known]
        cache = self.cache.select([known[number] for number in old]).join(self.model.new_cache(len(new)))
        order = {number: place for place, number in enumerate([*old, *new])}
        places = [order[text.number] for text in texts]
        self.cache = cache if places == list(range(len(texts))) else cache.select(places)
        same = [_same(self.read.get(text.number, []), text.visible()) for text in texts]
        self.cache.truncate(same)
        return [text.visible()[length:] for text, length in zip(texts, same, strict=True)]


def _same(read: Sequence[int], ids: Sequence[int]) -> int:
    """How many first ids are the same, leaving at least one to read."""
    most = min(len(read), len(ids) - 1)
    return next((place for place in range(most) if read[place] != ids[place]), most)
