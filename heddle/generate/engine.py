"""Continuous batching: rows of different lengths share each forward pass, and each continues as if it were alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heddle.checks import SEED, checked
from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.errors import HeddleError, pluralize, room_for
from heddle.generate.constrain import Guides
from heddle.generate.feed import feed
from heddle.generate.logprobs import Event
from heddle.generate.prefill import PrefillBatch, PrefixCache, sample_each
from heddle.generate.processors import Ends, TokenSequence
from heddle.generate.speculative import DraftSource
from heddle.generate.stream import DecodingRules, check_generates
from heddle.model.evaluating import evaluating
from heddle.model.fusing import fuse
from heddle.model.graphs import GraphedSteps, graph_steps
from heddle.model.linear import use_few_rows
from heddle.model.steps import package_steps
from heddle.model.transformer import Transformer
from heddle.native.cores import share_cores
from heddle.nn.numeric import on_device

MIN_TOKENS_TO_GRAPH = 32  # capturing a graph takes as long as generating some tokens
MAX_RULES = 256  # samplings whose `DecodingRules` are cached


class QueueFull(HeddleError):
    """The queue of waiting texts is full."""


class Engine:
    """Generates for many rows at once. Each has its own sampling, and starts and ends at any step without affecting the others.

    The tokens of a row depend only on the model, its prompt, the sampling and its seed. Other rows change only the last bits of
    sums. The random draw is keyed by the seed and the position, so a text that is cut anywhere and resumed continues the same
    way; except in a prefix model, whose prefix is then the text so far. `DecodingRules` says how rows start and end. A row whose
    `TokenSequence.text` is set also ends at a stop text.

    A step makes at most two forward passes: one for the active rows, and one for rows in prefill, whose prompts are read in
    chunks of `config.chunk` tokens. Equal prompts that start together are read once.

    Args:
        model: used in evaluation mode, then returned to its mode. Its precision does not change. If it is already in evaluation
            mode on a CPU, products of few rows are this processor's own (`heddle.native`), and its steps are compiled once they
            have taken a while (`heddle.model.steps`).
        end_of_text: see `DecodingRules`.
        vocabulary: see `DecodingRules`.
        config: limits on rows, chunks and the queue; None: no limits.
        draft_source: proposes draft tokens, which the model verifies several in one pass. The tokens stay the same.
        guides: guides of the model's tokenizer, for constrained texts.

    Raises:
        HeddleError: as in `DecodingRules`; or there is a draft source, but the model's cache cannot be truncated.
    """

    @checked()
    def __init__(
        self,
        model: Transformer,
        end_of_text: Ends = None,
        vocabulary: int | None = None,
        config: EngineConfig | None = None,
        draft_source: DraftSource | None = None,
        guides: Guides | None = None,
    ) -> None:
        check_generates(model)
        package_steps(use_few_rows(fuse(model)))
        self.model, self.draft_source, self.guides = model, draft_source, guides
        self.config = EngineConfig() if config is None else config
        self.end_of_text, self.vocabulary = end_of_text, vocabulary
        self.rules: dict[SamplingConfig, DecodingRules] = {}
        self.submitted = 0
        self.waiting: list[TokenSequence] = []
        self.prefill: PrefillBatch | None = None
        self.active: list[TokenSequence] = []  # in the order of the cache
        self.cache = model.new_cache(0)
        self.ahead: Tensor | None = None  # logits of the active rows, if the model has read their last tokens already
        self.modules = tuple(model.modules())
        # A prefix model reads its prompt in one pass, since every token attends to all of it.
        self.chunk = None if self.cache.prefix else self.config.chunk
        self.prefix_cache = PrefixCache(model, self.config.keep)
        if draft_source is not None and not self.cache.truncates:
            raise HeddleError(
                "speculative decoding needs a cache that can be truncated; this model has windows or recurrent layers"
            )

    @classmethod
    @checked()
    def of(
        cls,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        end_of_text: Ends = None,
        seeds: Sequence[int] | None = None,
        vocabulary: int | None = None,
        sources: Sequence[Sequence[int]] | None = None,
        draft_source: DraftSource | None = None,
        guides: Guides | None = None,
    ) -> "Engine":
        """An engine with one row per prompt, all with the same sampling.

        Args:
            model: see `Engine`.
            prompts: token ids, one list per row.
            sampling: how to sample, and when to end.
            end_of_text: see `DecodingRules`.
            seeds: one per row; None: `sampling.seed` for all rows, so that equal prompts continue the same way.
            vocabulary: see `DecodingRules`.
            sources: token ids for the encoder of an encoder-decoder, one list per row.
            draft_source: see `Engine`.
            guides: see `Engine`.

        Raises:
            HeddleError: as in `submit`, or the number of seeds or sources is not that of prompts.
        """
        for name, values in (("seed", seeds), ("source", sources)):
            if values is not None and len(values) != len(prompts):
                raise HeddleError(f"{len(values)} {name}s for {len(prompts)} prompts; give one {name} per prompt")
        engine = cls(model, end_of_text, vocabulary, draft_source=draft_source, guides=guides)
        for number, prompt in enumerate(prompts):
            seed = None if seeds is None else seeds[number]
            engine.submit(prompt, sampling, seed, None if sources is None else sources[number])
        return engine

    @checked(seed=SEED)
    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        seed: int | None = None,
        source: Sequence[int] | None = None,
        echo: bool = False,
    ) -> int:
        """Add a row and return its number. It starts in the next step that has room for it.

        Args:
            prompt: token ids; for an encoder-decoder, the beginning of the answer, usually empty.
            sampling: how to sample, and when to end.
            seed: seed of its random draws; None: `sampling.seed`.
            source: token ids for the encoder of an encoder-decoder.
            echo: whether the first event also has the log probabilities of the prompt's tokens.

        Raises:
            QueueFull: the queue is full (`config.queue`).
            HeddleError: as in `DecodingRules` and `DecodingRules.new_sequence`; or `echo` is set, but the model reads a prompt in
                both directions, so its tokens have no log probabilities.
        """
        if echo and self.cache.prefix:
            raise HeddleError(
                "this model reads a prompt in both directions, so its tokens have no log probabilities: leave out echo"
            )
        if self.config.queue is not None and len(self.waiting) >= self.config.queue:
            raise QueueFull(f"{len(self.waiting)} texts are waiting; try again later")
        if sampling.constrained and self.guides is None:
            raise HeddleError(
                "a constrained text needs the tokenizer: use complete, or give the engine Guides(tokenizer)"
            )
        rules = self._rules_for(sampling)
        seed = sampling.seed if seed is None else seed
        sequence = rules.new_sequence(self.submitted, prompt, seed, source, sampling.max_tokens)
        sequence.guide = None if self.guides is None else self.guides.make(sampling, prompt[-1] if prompt else None)
        sequence.echo = echo
        if sampling.max_tokens >= MIN_TOKENS_TO_GRAPH and not self.model.training and self.model.steps is None:
            graph_steps(self.model)
        self.waiting.append(sequence)
        self.submitted += 1
        return sequence.number

    def __bool__(self) -> bool:
        """Whether any row continues."""
        return bool(self.waiting or self.prefill or self.active)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Sample the next token of every row that has read its prompt; with a draft source, one or several.

        Raises:
            HeddleError: the texts do not fit into memory. After any error all rows have ended.
        """
        share_cores()
        try:
            with room_for(self._size, "use fewer texts, a lower max_tokens, shorter prompts, or a smaller model"):
                with evaluating(self.model, self.modules):
                    events = [*self._decode(), *self._prefill()]
                self.leave({event.row for event in events if event.finish})
                self._restart_full_rows()
        except BaseException:
            self.clear()  # the cache may have room for tokens that were not read
            raise
        return sorted(events, key=lambda event: event.row)

    def clear(self) -> None:
        """End all rows, and forget the prompts that were read."""
        self.waiting, self.prefill, self.active, self.ahead = [], None, [], None
        self.cache, self.prefix_cache = self.model.new_cache(0), PrefixCache(self.model, self.config.keep)

    def _size(self) -> str:
        """How much a step reads at once, in words."""
        rows = [*self.active, *([] if self.prefill is None else self.prefill.rows)]
        longest = max((len(row.visible()) + len(row.source or ()) for row in rows), default=0)
        return f"{pluralize(len(rows), 'text')} of up to {pluralize(longest, 'token')} at a time"

    @checked()
    def leave(self, rows: set[int]) -> None:
        """End these rows, by their numbers."""
        self.waiting = [row for row in self.waiting if row.number not in rows]
        if self.prefill is not None and not self.prefill.remove(rows):
            self.prefill = None
        self._remove_active(rows)

    def _decode(self) -> list[Event]:
        """Sample the next tokens of the active rows."""
        if not self.active:
            return []
        drafts = [list[int]() for _ in self.active]
        if self.draft_source is not None:
            room = [row.rules.room(row) for row in self.active]
            drafts = self.draft_source.propose(self.active, [row.rules for row in self.active], room)
        inputs = [row.ids[-1:] + draft for row, draft in zip(self.active, drafts, strict=True)]
        drafted = any(drafts)
        logits, self.ahead = self.ahead, None
        if logits is None:
            logits = feed(self.model, self.cache, inputs, every=drafted)
        sequences = self.active
        if drafted:  # one row of logits per input id: after the sequence itself, and after each of its draft tokens
            sequences = [
                replace(row, ids=row.ids + draft[:count])
                for row, draft in zip(self.active, drafts, strict=True)
                for count in range(len(draft) + 1)
            ]
        sampled = sample_each(sequences, logits)
        if isinstance(steps := self.model.steps, GraphedSteps) and self._goes_ahead():
            self.ahead = steps(sampled.ids()[:, None], self.cache).clone()  # the next replay overwrites them
        samples, events = iter(sampled.events()), list[Event]()
        for row, draft in zip(self.active, drafts, strict=True):
            events += _accept(row, draft, [next(samples) for _ in range(len(draft) + 1)])
        if drafted:
            self.cache.truncate([len(row.visible()) - 1 for row in self.active])
        return events

    def _goes_ahead(self) -> bool:
        """Whether a graph may read the sampled ids before the host does: while no rows are to join.

        What it computes for a row that then ends is dropped with the row.
        """
        ends = all(len(row.ids) + 1 >= row.max_length for row in self.active)
        room = self.cache.longest is None or max(self.cache.lengths) < self.cache.longest
        joins = self.waiting or self.prefill or self.draft_source
        return room and not joins and not ends

    def _prefill(self) -> list[Event]:
        """Read the next chunks of prompts. Sample the first tokens once the prompts are read to their ends."""
        room = None if self.config.rows is None else self.config.rows - len(self.active)
        if self.prefill is None and self.waiting and room != 0:
            self.prefill, self.waiting = self.prefix_cache.next_batch(self.waiting, room, self.chunk)
        batch = self.prefill
        if batch is None:
            return []
        chunks, sources = batch.next_chunks(self.chunk)
        logits = feed(self.model, batch.cache, chunks, sources, every=batch.echo)
        logits = batch.record_logprobs(chunks, logits) if batch.echo else logits
        if batch.advance(chunks):
            return []
        self.prefix_cache.store(batch, logits)
        rows, logits = batch.rows, logits[batch.prompt_of_row]
        self.prefill, self.cache = None, self.cache.join(batch.expanded_cache())
        self.active = self.active + rows
        samples = sample_each(rows, logits).events()
        return [_append(row, sample, batch.take_prompt_samples(row)) for row, sample in zip(rows, samples, strict=True)]

    def _rules_for(self, sampling: SamplingConfig) -> DecodingRules:
        """The rules of a sampling. Rows that differ only in seed and length share them, and are sampled together."""
        key = sampling.model_copy(update={"seed": 0, "max_tokens": 1})
        if key not in self.rules:
            if len(self.rules) >= MAX_RULES:
                self.rules.clear()
            self.rules[key] = DecodingRules(self.model, key, self.end_of_text, self.vocabulary)
        return self.rules[key]

    def _restart_full_rows(self) -> None:
        """Move full rows to the waiting list, to be recomputed from the last half of their context."""
        full = self._remove_active({row.number for row in self.active if row.rules.is_full(row)})
        for row in full:
            row.rules.shorten(row)
        self.waiting = full + self.waiting

    def _remove_active(self, numbers: set[int]) -> list[TokenSequence]:
        """Remove these rows from the active ones and from the cache, and return them."""
        removed = [row for row in self.active if row.number in numbers]
        if removed:
            left = [index for index, row in enumerate(self.active) if row.number not in numbers]
            self.cache = self.cache.select(left)
            if self.ahead is not None:
                self.ahead = self.ahead.index_select(0, on_device(left, self.ahead.device)) if left else None
            self.active = [self.active[index] for index in left]
        return removed


def _accept(row: TokenSequence, draft: Sequence[int], samples: Sequence[Event]) -> list[Event]:
    """Append the tokens sampled after a sequence and after each of its draft tokens, up to the first wrong draft token."""
    events = []
    for draft_token, sample in zip((*draft, None), samples, strict=True):
        events.append(_append(row, sample))
        if events[-1].finish or sample.token != draft_token:
            break
    return events


def _append(row: TokenSequence, sample: Event, prompt: tuple[Event, ...] = ()) -> Event:
    """Append a token to its sequence, unless it is not valid. Return the event with the token's text and why the row ends."""
    if sample.error:
        return replace(sample, prompt=prompt)
    row.ids.append(sample.token)
    finish, text = row.rules.finish(row), ""
    if row.text is not None:
        text = "" if finish == "end" else row.decode()
        if finish and not row.text.stopped:
            text += row.text.flush()
        finish = "stop" if row.text.stopped else finish
    if not (text or finish or prompt):
        return sample
    return Event(row.number, sample.token, sample.logprob, finish, sample.top, prompt, None, text)


@checked()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    end_of_text: Ends = None,
    seeds: Sequence[int] | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Iterator[Event]:
    """Yield every sampled token of every row. The arguments are those of `Engine.of`.

    Raises:
        HeddleError: as in `Engine.of`, or the model's output is NaN or infinite.
    """
    engine = Engine.of(model, prompts, sampling, end_of_text, seeds, sources=sources)
    while engine:
        yield from raise_if_failed(engine.step())


def raise_if_failed(events: list[Event]) -> list[Event]:
    """Return the events unchanged.

    Raises:
        HeddleError: a row is broken.
    """
    if broken := next((event for event in events if event.error), None):
        raise HeddleError(f"row {broken.row}: {broken.error}")
    return events
