"""Prefill: prompts are read in batches, in chunks if they are long; equal ones, and prefixes of earlier ones, are read once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.generate.logprobs import Event, log_probabilities, read_samples, top_logprobs
from heddle.generate.processors import TokenSequence
from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache
from heddle.nn.numeric import on_device, read_later

Sample = tuple[int, float, tuple[tuple[int, float], ...]]
"""An id, its log probability, and the most probable ids with theirs."""

MIN_SHARED = 16  # tokens that two prompts must share for a cached prefix to be worth copying


class PrefillBatch:
    """Rows whose prompts are being read. All distinct prompts are read up to the same position.

    Args:
        rows: the rows. Equal prompts are read once.
        cache: contains the first `read` tokens of each distinct prompt.
        read: number of tokens.
    """

    def __init__(self, rows: Sequence[TokenSequence], cache: Cache, read: int) -> None:
        self.rows, self.cache, self.read = list(rows), cache, read
        distinct = list(dict.fromkeys(_key(row) for row in rows))
        self.prompt_of_row = [distinct.index(_key(row)) for row in rows]
        self.prompts = [list(prompt) for prompt, _ in distinct]
        self.sources = [list(source) for _, source in distinct if source is not None]
        self.samples: list[list[Sample]] = [[] for _ in distinct]

    @property
    def echo(self) -> bool:
        """Whether a row needs the log probabilities of its prompt."""
        return any(row.echo for row in self.rows)

    def next_chunks(self, chunk: int | None) -> tuple[list[list[int]], list[list[int]]]:
        """The next ids to read of each prompt, and the sources if they have not been read."""
        end = None if chunk is None or len(self.prompts) > 1 else self.read + chunk
        sources = self.sources if self.cache.encoded is None else []
        return [prompt[self.read : end] for prompt in self.prompts], sources

    def record_logprobs(self, chunks: Sequence[list[int]], logits: Float[Tensor, "N V"]) -> Float[Tensor, "B V"]:
        """Record the log probabilities of the prompts' tokens. Return the logits after the chunks.

        Args:
            chunks: the ids just read of each prompt.
            logits: the logits after every id of the chunks. Each predicts the next token of its prompt.
        """
        count = max(row.rules.alternatives for row in self.rows)
        parts = logits.split([len(chunk) for chunk in chunks])
        for part, prompt, samples in zip(parts, self.prompts, self.samples, strict=True):
            targets = torch.tensor(prompt[self.read + 1 : self.read + 1 + len(part)], device=logits.device)
            logprobs = log_probabilities(part[: len(targets)])
            scores = logprobs.gather(-1, targets[:, None].long())[:, 0].tolist()
            top = top_logprobs(logprobs, count)
            samples += zip(targets.tolist(), scores, top, strict=True)
        return torch.stack([part[-1] for part in parts])

    def take_prompt_samples(self, row: TokenSequence) -> tuple[Event, ...]:
        """The tokens of a row's prompt with their log probabilities, once, if the row asks for them."""
        if not row.echo:
            return ()
        row.echo, count = False, row.rules.alternatives
        samples = self.samples[self.prompt_of_row[self.rows.index(row)]]
        return tuple(Event(row.number, id, logprob, None, top[:count]) for id, logprob, top in samples)

    def advance(self, chunks: Sequence[list[int]]) -> bool:
        """Count the chunks as read. Return whether more is to be read."""
        self.read += max(map(len, chunks))
        return any(len(prompt) > self.read for prompt in self.prompts)

    def expanded_cache(self) -> Cache:
        """The cache with one row per row of the batch, in order."""
        distinct = self.prompt_of_row == list(range(len(self.prompts)))
        return self.cache if distinct else self.cache.select(self.prompt_of_row)

    def remove(self, numbers: set[int]) -> bool:
        """Remove these rows. Return whether any are left."""
        left = [index for index, row in enumerate(self.rows) if row.number not in numbers]
        self.rows = [self.rows[index] for index in left]
        self.prompt_of_row = [self.prompt_of_row[index] for index in left]
        return bool(left)


class PrefixCache:
    """Prefix caching: KV caches of earlier prompts, from which later prompts copy a shared prefix.

    Only causal models that cache every token separately can use it. Other models read every prompt from its start.

    Args:
        model: the model.
        count: number of prompts to keep. The least recently used one is evicted first.
    """

    def __init__(self, model: Transformer, count: int) -> None:
        self.model, self.count = model, count
        empty = model.new_cache(0)
        self.enabled = count > 0 and empty.truncates and not empty.prefix and model.encoder is None
        self.entries: list[tuple[list[int], Cache]] = []  # prompts with their caches, the most recently used last

    def next_batch(
        self, waiting: list[TokenSequence], room: int | None, chunk: int | None
    ) -> tuple[PrefillBatch, list[TokenSequence]]:
        """Split off the first waiting rows that can be read in one batch. Return the batch and the rows that still wait.

        Args:
            waiting: at least one row.
            room: maximum number of rows.
            chunk: prompt tokens to read at a time.
        """
        entry, shared = self._longest_match(waiting[0])
        rows, longest, distinct = list[TokenSequence](), 0, set[object]()
        for row in waiting[:room]:
            row_shared = shared
            if rows:
                row_shared = min(shared, 0 if entry is None else common_length(entry[0], row.visible()))
            distinct |= {_key(row)}
            longest = max(longest, len(row.visible()) + len(row.source or ()))
            fits = chunk is None or (longest - row_shared) * len(distinct) <= chunk
            # A row that shares little with the cached prompt would make the others read their shared part again.
            if rows and (not fits or 2 * row_shared < shared or row.echo != rows[0].echo):
                break
            shared = row_shared
            rows.append(row)
        count = len({_key(row) for row in rows})
        cache = self.model.new_cache(count)
        if entry is not None and shared:
            cache = entry[1].select([0] * count)
            cache.truncate([shared] * count)
        return PrefillBatch(rows, cache, shared if entry is not None else 0), waiting[len(rows) :]

    def store(self, batch: PrefillBatch, logits: Float[Tensor, "N V"]) -> None:
        """Store the caches of a batch whose prompts have been read.

        Args:
            logits: the logits after each prompt. Where they are NaN, the cache is too, so it is not stored.
        """
        if not self.enabled:
            return
        is_nan = logits.isnan().any(-1).tolist()
        for index, prompt in enumerate(batch.prompts):
            if len(prompt) >= MIN_SHARED and not is_nan[index]:
                # The new prompt replaces entries that are its prefixes.
                self.entries = [entry for entry in self.entries if entry[0] != prompt[: len(entry[0])]]
                self.entries.append((prompt, batch.cache.select([index])))
        self.entries = self.entries[-self.count :]

    def _longest_match(self, row: TokenSequence) -> tuple[tuple[list[int], Cache] | None, int]:
        """The entry that shares the longest prefix with a row's prompt, and the prefix's length, which excludes the last id."""
        if not self.enabled or row.echo:  # an echo needs the logits of the whole prompt
            return None, 0
        prompt = row.visible()
        best = max(self.entries, key=lambda entry: common_length(entry[0], prompt), default=None)
        shared = 0 if best is None else common_length(best[0], prompt)
        if best is None or shared < MIN_SHARED:
            return None, 0
        self.entries = [entry for entry in self.entries if entry is not best] + [best]
        return best, shared


@dataclass(frozen=True)
class Samples:
    """Sampled ids, which the host has not read yet.

    Attributes:
        ids: returns Int[B], on the device.
        events: waits for the device and returns what was sampled, one per sequence.
    """

    ids: Callable[[], Tensor]
    events: Callable[[], list[Event]]


def sample_each(sequences: Sequence[TokenSequence], logits: Float[Tensor, "B V"]) -> Samples:
    """Sample the next id of each sequence by its rules. Sequences that share their rules are sampled together."""
    groups: dict[int, list[int]] = {}
    for row, sequence in enumerate(sequences):
        groups.setdefault(id(sequence.rules), []).append(row)
    parts = []
    for group in groups.values():
        part = logits if len(groups) == 1 else logits.index_select(0, on_device(group, logits.device))
        parts.append(sequences[group[0]].rules.samples(part, [sequences[row] for row in group]))
    read = read_later(torch.cat([part.flatten() for part in parts]))

    def ids() -> Tensor:
        order = [row for group in groups.values() for row in group]
        sampled = torch.cat([part[:, 0] for part in parts]).long()
        if order == sorted(order):
            return sampled
        places = sorted(range(len(order)), key=lambda place: order[place])
        return sampled.index_select(0, on_device(places, sampled.device))

    def events() -> list[Event]:
        numbers, sampled = iter(read().tolist()), dict[int, Event]()
        for group, part in zip(groups.values(), parts, strict=True):
            samples = [list(islice(numbers, part.shape[1])) for _ in group]
            sampled |= zip(group, read_samples(samples, [sequences[row] for row in group]), strict=True)
        return [sampled[row] for row in range(len(sequences))]

    return Samples(ids, events)


def common_length(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the common prefix, at most one less than the prompt: the logits of the last id are needed."""
    limit = min(len(cached), len(prompt) - 1)
    return next((index for index in range(limit) if cached[index] != prompt[index]), max(limit, 0))


def _key(sequence: TokenSequence) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Everything the model reads of a sequence; rows with equal keys share a row of the cache."""
    return tuple(sequence.visible()), None if sequence.source is None else tuple(sequence.source)
