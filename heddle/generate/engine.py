"""Many texts at once: rows of different lengths share each forward pass, and each continues as if it were alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from heddle.account.machine import available_memory
from heddle.checks import SEED, checked
from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.generate.constrain import Guides
from heddle.generate.feed import feed
from heddle.generate.logprobs import SampledToken
from heddle.generate.prefill import PrefillBatch, PrefillRow, PrefixCache, draw_each
from heddle.generate.processors import Ends
from heddle.generate.speculative import DraftSource
from heddle.generate.stream import DecodingRules, Finish, check_generates
from heddle.model.cores import share_cores
from heddle.model.evaluating import evaluating
from heddle.model.packing import pack
from heddle.model.transformer import Transformer

WORTH_PACKING = 32  # tokens per text; packing the weights takes as long as generating ten to twenty tokens
CONFIGS = 256  # samplings whose preparation is kept


class QueueFull(HeddleError):
    """As many texts wait as may wait."""


@displayed()
@dataclass(frozen=True)
class Event:
    """One drawn token.

    Attributes:
        row: the number of its prompt.
        token: its id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        finish: why the row ends with this token, or None. `end`: it is an end of text; `length`: it is the last of
            `max_tokens`; `context`: the context is full; `broken`: no token could be drawn, `error` says why. (`stop`, a stop
            text, is found in `heddle.generate.text`.)
        top: the most probable ids with the logs of their probabilities, if the sampling asks for them.
        prompt: with the row's first token, if it was asked for: each token of the prompt but the first, as if drawn.
        error: why the row is broken.
    """

    row: int
    token: int
    logprob: float
    finish: Finish | None
    top: tuple[tuple[int, float], ...] = ()
    prompt: tuple[SampledToken, ...] = ()
    error: str | None = None


class Engine:
    """Texts that grow together. Each has its own sampling; it starts and ends at any step without affecting the others.

    A row's tokens are a function of the model, its prompt, the sampling and its seed; other rows change only the last bits of
    sums. A draw's randomness is keyed by the seed and the position in the text, so a text that is cut anywhere and resumed
    continues the same way; except in a prefix model, whose prefix is then the whole text so far. How texts start and end is
    written in `DecodingRules`.

    A step makes at most two forward passes: one for rows that continue, one for rows that start, whose prompts are read in
    pieces if `config.chunk` limits them. Equal prompts that start together are read once.

    Args:
        model: used in evaluation mode, then returned to its mode; its precision is kept. If it is already in evaluation mode
            and texts may become long, its weights are packed (see `heddle.model.packing`), which changes only its memory.
        end_of_text: see `DecodingRules`.
        vocabulary: see `DecodingRules`.
        config: how much to do at once; None: everything.
        proposer: guesses next tokens, which the model confirms, several in one pass; the tokens stay the same.
        guides: of the model's tokenizer, for constrained texts.

    Raises:
        HeddleError: as in `DecodingRules`; or there is a proposer, but the model cannot take tokens back.
    """

    @checked()
    def __init__(
        self,
        model: Transformer,
        end_of_text: Ends = None,
        vocabulary: int | None = None,
        config: EngineConfig | None = None,
        proposer: DraftSource | None = None,
        guides: Guides | None = None,
    ) -> None:
        check_generates(model)
        self.model, self.proposer, self.guides = model, proposer, guides
        self.config = EngineConfig() if config is None else config
        self.end_of_text, self.vocabulary = end_of_text, vocabulary
        self.decodings: dict[SamplingConfig, DecodingRules] = {}
        self.submitted = 0
        self.waiting: list[PrefillRow] = []
        self.opening: PrefillBatch | None = None
        self.active: list[PrefillRow] = []  # in the order of the cache
        self.cache = model.new_cache(0)
        self.modules = tuple(model.modules())
        self.chunk = (
            None if self.cache.prefix else self.config.chunk
        )  # a prefix is read in one pass, so that it sees itself
        self.prefixes = PrefixCache(model, self.config.keep)
        if proposer is not None and not self.cache.truncates:
            raise HeddleError(
                "guessed tokens need a model that can take them back; this one has windows or recurrent layers"
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
        proposer: DraftSource | None = None,
        guides: Guides | None = None,
    ) -> "Engine":
        """An engine with a row for each prompt, all with one sampling.

        Args:
            model: see `Engine`.
            prompts: ids, one list per row.
            sampling: how to draw, and when to end.
            end_of_text: see `DecodingRules`.
            seeds: one per row; None: `sampling.seed` for all rows, so that equal prompts continue alike.
            vocabulary: see `DecodingRules`.
            sources: what the encoder of an encoder-decoder reads, ids, one list per row.
            proposer: see `Engine`.
            guides: see `Engine`.

        Raises:
            HeddleError: as in `submit`, or there is not one seed or source for each prompt.
        """
        for what, given in (("seed", seeds), ("source", sources)):
            if given is not None and len(given) != len(prompts):
                raise HeddleError(f"{len(given)} {what}s for {len(prompts)} prompts; give one {what} per prompt")
        engine = cls(model, end_of_text, vocabulary, proposer=proposer, guides=guides)
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
        """Add a row, and return its number. It starts in the next step that has room for it.

        Args:
            prompt: ids; of an encoder-decoder, the beginning of its answer, usually empty.
            sampling: how to draw, and when to end.
            seed: keys its draws; None: `sampling.seed`.
            source: what the encoder of an encoder-decoder reads.
            echo: whether the first event also has the log probabilities of the prompt's tokens.

        Raises:
            QueueFull: as many rows wait as `config.queue` allows.
            HeddleError: as in `DecodingRules` and `DecodingRules.open`; or there is an echo, but the model reads a prompt in both
                directions, so that each of its tokens is seen before it is predicted.
        """
        if echo and self.cache.prefix:
            raise HeddleError(
                "this model reads a prompt as a whole, so its tokens have no log probabilities: leave out echo"
            )
        if self.config.queue is not None and len(self.waiting) >= self.config.queue:
            raise QueueFull(f"{len(self.waiting)} texts are waiting; try again later")
        if sampling.constrained and self.guides is None:
            raise HeddleError(
                "a constrained text needs the tokenizer: use complete, or give the engine Guides(tokenizer)"
            )
        decoding = self._decoding(sampling)
        seed = sampling.seed if seed is None else seed
        text = decoding.open(self.submitted, prompt, seed, source, sampling.max_tokens)
        text.guide = None if self.guides is None else self.guides.make(sampling, prompt[-1] if prompt else None)
        if sampling.max_tokens >= WORTH_PACKING and not self.model.training and self.model.steps is None:
            pack(self.model, memory=available_memory() // 2)
        self.waiting.append(PrefillRow(text, decoding, echo))
        self.submitted += 1
        return text.number

    def __bool__(self) -> bool:
        """Whether any text continues."""
        return bool(self.waiting or self.opening or self.active)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Draw the next token of every row that has read its prompt; with a proposer, one or several."""
        share_cores()
        with evaluating(self.model, self.modules):
            events = [*self._continue(), *self._begin()]
        self.leave({event.row for event in events if event.finish})
        self._restart_full_rows()
        return sorted(events, key=lambda event: event.row)

    @checked()
    def leave(self, rows: set[int]) -> None:
        """End these rows, by their numbers."""
        self.waiting = [row for row in self.waiting if row.text.number not in rows]
        if self.opening is not None and not self.opening.leave(rows):
            self.opening = None
        self._take_out(rows)

    def _continue(self) -> list[Event]:
        """The next tokens of the rows that have read their prompts."""
        if not self.active:
            return []
        guesses = [list[int]() for _ in self.active]
        if self.proposer is not None:
            room = [row.decoding.room(row.text) for row in self.active]
            guesses = self.proposer.propose(
                [row.text for row in self.active], [row.decoding for row in self.active], room
            )
        pieces = [row.text.ids[-1:] + guess for row, guess in zip(self.active, guesses, strict=True)]
        guessed = any(guesses)
        logits = feed(self.model, self.cache, pieces, every=guessed)
        rows = [row for row, guess in zip(self.active, guesses, strict=True) for _ in range(len(guess) + 1)]
        texts = [row.text for row in rows]
        if guessed:
            texts = [
                replace(row.text, ids=row.text.ids + guess[:count])
                for row, guess in zip(self.active, guesses, strict=True)
                for count in range(len(guess) + 1)
            ]
        drawn, events = iter(draw_each([row.decoding for row in rows], texts, logits)), list[Event]()
        for row, guess in zip(self.active, guesses, strict=True):
            events += _confirmed(row, guess, [next(drawn) for _ in range(len(guess) + 1)])
        if guessed:
            self.cache.truncate([len(row.text.visible()) - 1 for row in self.active])
        return events

    def _begin(self) -> list[Event]:
        """The first tokens of rows whose prompts have been read to their ends."""
        room = None if self.config.rows is None else self.config.rows - len(self.active)
        if self.opening is None and self.waiting and room != 0:
            self.opening, self.waiting = self.prefixes.open(self.waiting, room, self.chunk)
        opening = self.opening
        if opening is None:
            return []
        pieces, sources = opening.next_pieces(self.chunk)
        logits = feed(self.model, opening.cache, pieces, sources, every=opening.echo)
        logits = opening.listen(pieces, logits) if opening.echo else logits
        if opening.read_more(pieces):
            return []
        self.prefixes.keep(opening, logits)
        rows, logits = opening.rows, logits[opening.places]
        self.opening, self.cache = None, self.cache.join(opening.spread())
        self.active = self.active + rows
        drawn = draw_each([row.decoding for row in rows], [row.text for row in rows], logits)
        return [_appended(row, each, opening.heard(row)) for row, each in zip(rows, drawn, strict=True)]

    def _decoding(self, sampling: SamplingConfig) -> DecodingRules:
        """What rows with this sampling, whatever their seeds and lengths, have in common; they are drawn together."""
        key = sampling.model_copy(update={"seed": 0, "max_tokens": 1})
        if key not in self.decodings:
            if len(self.decodings) >= CONFIGS:
                self.decodings.clear()
            self.decodings[key] = DecodingRules(self.model, key, self.end_of_text, self.vocabulary)
        return self.decodings[key]

    def _restart_full_rows(self) -> None:
        """Move full rows to the waiting list, to be recomputed from the last half of their context."""
        full = self._take_out({row.text.number for row in self.active if row.decoding.is_full(row.text)})
        for row in full:
            row.decoding.shorten(row.text)
        self.waiting = full + self.waiting

    def _take_out(self, numbers: set[int]) -> list[PrefillRow]:
        """Remove these rows from the active ones and from the cache."""
        out = [row for row in self.active if row.text.number in numbers]
        if out:
            self.cache = self.cache.select([i for i, row in enumerate(self.active) if row.text.number not in numbers])
            self.active = [row for row in self.active if row.text.number not in numbers]
        return out


def _confirmed(row: PrefillRow, guess: Sequence[int], drawn: Sequence[SampledToken]) -> list[Event]:
    """Append what was drawn after a text and after its guessed continuations, as long as the guesses were right."""
    events = []
    for guessed, each in zip((*guess, None), drawn, strict=True):
        events.append(_appended(row, each))
        if events[-1].finish or each.id != guessed:
            break
    return events


def _appended(row: PrefillRow, drawn: SampledToken, prompt: tuple[SampledToken, ...] = ()) -> Event:
    """Append an id to its text, unless it is broken."""
    finish: Finish | None = "broken"
    if not drawn.broken:
        row.text.ids.append(drawn.id)
        finish = row.decoding.finish(row.text)
    return Event(row.text.number, drawn.id, drawn.logprob, finish, drawn.top, prompt, drawn.broken)


@checked()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    end_of_text: Ends = None,
    seeds: Sequence[int] | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Iterator[Event]:
    """Yield every drawn token of every row. Arguments are those of `Engine.of`.

    Raises:
        HeddleError: as in `Engine.of`, or the model's output is NaN or infinite.
    """
    engine = Engine.of(model, prompts, sampling, end_of_text, seeds, sources=sources)
    while engine:
        yield from raise_if_failed(engine.step())


def raise_if_failed(events: list[Event]) -> list[Event]:
    """The same events.

    Raises:
        HeddleError: one of them is broken.
    """
    if broken := next((event for event in events if event.error), None):
        raise HeddleError(f"row {broken.row}: {broken.error}")
    return events
