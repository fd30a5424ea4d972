"""Speculative decoding: sources of draft tokens, which the model verifies in one pass (Leviathan et al. 2023, Chen et al. 2023).

The model samples after each draft token with the same seed and position as without a draft, and keeps its own samples up to
the first draft token that differs. So the text is the same with and without a draft, token for token, greedy or sampled. The
draft only changes the number of passes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from heddle.checks import at_least, checked
from heddle.errors import HeddleError
from heddle.generate.feed import feed
from heddle.generate.prefill import common_length, sample_each
from heddle.generate.processors import TokenSequence
from heddle.generate.stream import DecodingRules
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer


@runtime_checkable
class DraftSource(Protocol):
    """Proposes draft tokens for sequences."""

    def propose(
        self, sequences: Sequence[TokenSequence], rules: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        """Draft tokens after each sequence, at most `room[i]` of them, possibly none.

        Args:
            sequences: the sequences, each with at least one id that the model has not read.
            rules: how to continue each of them.
            room: maximum number of draft tokens of each, by its context and its maximum length.
        """
        ...


class PromptLookup:
    """Prompt lookup: copies what followed an earlier occurrence of the last ids (Saxena 2023).

    Args:
        count: number of draft tokens.
        longest: length of the n-gram to look up. Shorter ones are tried if it has no match.
        shortest: length of the shortest n-gram.
    """

    @checked(count=at_least(1), longest=at_least(1), shortest=at_least(1))
    def __init__(self, count: int = 10, longest: int = 3, shortest: int = 2) -> None:
        self.count, self.longest, self.shortest = count, longest, shortest

    def propose(
        self, sequences: Sequence[TokenSequence], rules: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        """See `DraftSource`."""
        return [self._look_up(sequence.visible())[:limit] for sequence, limit in zip(sequences, room, strict=True)]

    def _look_up(self, ids: list[int]) -> list[int]:
        for length in range(self.longest, self.shortest - 1, -1):
            tail = ids[len(ids) - length :]
            draft: list[int] = []
            # The latest match that is followed by `count` ids; if there is none, the one followed by the most.
            for end in range(len(ids) - 1, length - 1, -1):
                if len(draft) < self.count and ids[end - 1] == tail[-1] and ids[end - length : end] == tail:
                    draft = max(draft, ids[end : end + self.count], key=len)
            if draft:
                return draft
        return []


class DraftModel:
    """Draft tokens sampled from a smaller model with the same vocabulary, with the same seed and position.

    Args:
        model: the smaller model, used in evaluation mode.
        count: number of draft tokens in each step.

    Raises:
        HeddleError: the model is an encoder-decoder, or its cache cannot be truncated.
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
        self, sequences: Sequence[TokenSequence], rules: Sequence[DecodingRules], room: Sequence[int]
    ) -> list[list[int]]:
        """See `DraftSource`.

        Raises:
            HeddleError: the models' vocabularies differ.
        """
        fits = [
            limit > 0 and len(sequence.visible()) + self.count <= self.context
            for sequence, limit in zip(sequences, room, strict=True)
        ]
        drafted = [sequence for sequence, fit in zip(sequences, fits, strict=True) if fit]
        sizes = [each.vocab_size for each, fit in zip(rules, fits, strict=True) if fit]
        if any(size != self.model.vocab_size for size in sizes):
            raise HeddleError(f"the draft model has {self.model.vocab_size} ids, the model {sizes[0]}")
        drafts = iter(self._draft(drafted) if drafted else ())
        return [next(drafts)[:limit] if fit else [] for fit, limit in zip(fits, room, strict=True)]

    def _draft(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        inputs = self._align(sequences)
        copies = [replace(sequence, ids=list(sequence.ids)) for sequence in sequences]
        with evaluating(self.model):
            for _ in range(self.count):
                logits = feed(self.model, self.cache, inputs)
                for sequence, event in zip(copies, sample_each(copies, logits).events(), strict=True):
                    sequence.ids.append(event.token)
                inputs = [sequence.ids[-1:] for sequence in copies]
        self.read = {sequence.number: sequence.visible()[:-1] for sequence in copies}
        return [sequence.ids[-self.count :] for sequence in copies]

    def _align(self, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Reorder the cache to one row per sequence, truncated to what it has read of it. Return the ids still to read."""
        cached_rows = {number: row for row, number in enumerate(self.read)}
        old = [sequence.number for sequence in sequences if sequence.number in cached_rows]
        new = [sequence.number for sequence in sequences if sequence.number not in cached_rows]
        cache = self.cache.select([cached_rows[number] for number in old]).join(self.model.new_cache(len(new)))
        joined_rows = {number: row for row, number in enumerate([*old, *new])}
        order = [joined_rows[sequence.number] for sequence in sequences]
        self.cache = cache if order == list(range(len(sequences))) else cache.select(order)
        # The last draft may have been rejected: keep only what still agrees with the sequence.
        lengths = [common_length(self.read.get(sequence.number, []), sequence.visible()) for sequence in sequences]
        self.cache.truncate(lengths)
        return [sequence.visible()[length:] for sequence, length in zip(sequences, lengths, strict=True)]
