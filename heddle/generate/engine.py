"""Many texts at once: rows of different lengths share each forward pass, and each continues as if it were alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.account.machine import available_memory
from heddle.checks import checked
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.processors import GrowingText
from heddle.generate.stream import Decoding, Finish, evaluating
from heddle.model.packing import pack
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.nn.state import Cache

WORTH_PACKING = 32  # tokens per text; packing the weights takes as long as generating ten to twenty tokens


@dataclass(frozen=True)
class Event:
    """One drawn token.

    Attributes:
        row: the number of its prompt.
        token: its id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        finish: why the row ends with this token, or None. `end`: it is an end of text; `length`: it is the last of
            `max_tokens`; `context`: the context is full. (`stop`, a stop text, is found in `heddle.generate.text`.)
    """

    row: int
    token: int
    logprob: float
    finish: Finish | None


class Engine:
    """Texts that grow by one token per step. A text that ends leaves the batch without affecting the others.

    A row's tokens are a function of the model, its prompt, the sampling and its seed; other rows change only the last bits of
    sums. A draw's randomness is keyed by the seed and the position in the text, so a text that is cut anywhere and resumed
    continues the same way; except in a prefix model, whose prefix is then the whole text so far. How texts start and end is
    written in `Decoding`.

    Args:
        model: used in evaluation mode, then returned to its mode; its precision is kept. If it is already in evaluation mode
            and texts may become long, its weights are packed (see `heddle.model.packing`), which changes only its memory.
        prompts: ids, one list per row.
        sampling: how to draw, and when to end.
        end_of_text: see `Decoding`.
        seeds: one per row; None: `sampling.seed` for all rows, so that equal prompts continue alike.
        vocabulary: see `Decoding`.
        sources: what the encoder of an encoder-decoder reads, ids, one list per row; its prompts are the beginnings of the
            answers, usually empty.

    Raises:
        HeddleError: as in `Decoding.open`, or there is not one seed or source for each prompt.
    """

    @checked()
    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        end_of_text: int | None = None,
        seeds: Sequence[int] | None = None,
        vocabulary: int | None = None,
        sources: Sequence[Sequence[int]] | None = None,
    ) -> None:
        seeds = [sampling.seed] * len(prompts) if seeds is None else seeds
        if len(seeds) != len(prompts):
            raise HeddleError(f"{len(seeds)} seeds for {len(prompts)} prompts; give one seed per prompt")
        self.model, self.sampling = model, sampling
        self.decoding = Decoding(model, sampling, end_of_text, vocabulary)
        self.waiting = open_all(self.decoding, prompts, seeds, sources)
        self.active: list[GrowingText] = []  # in the order of the cache
        self.cache = model.new_cache(0)
        self.modules = tuple(model.modules())
        if sampling.max_tokens >= WORTH_PACKING and not model.training:
            pack(model, room=available_memory() // 2)

    def __bool__(self) -> bool:
        """Whether any text continues."""
        return bool(self.waiting or self.active)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Draw every row's next token: at most two forward passes, one for rows that continue, one for rows that start."""
        with evaluating(self.model, self.modules):
            logits = self._logits()
        events = []
        for row, (token, logprob) in zip(
            self.active, self.decoding.draw(logits, self.active, self.sampling), strict=True
        ):
            row.ids.append(token)
            events.append(Event(row.number, token, logprob, self.decoding.finish(row)))
        self.leave({event.row for event in events if event.finish})
        self._restart_full_rows()
        return sorted(events, key=lambda event: event.row)

    @checked()
    def leave(self, rows: set[int]) -> None:
        """End these rows, by the numbers of their prompts."""
        self.waiting = [row for row in self.waiting if row.number not in rows]
        self._take_out(rows)

    def _logits(self) -> Float[Tensor, "B V"]:
        """Logits after every active row's text, which the cache then holds."""
        parts = []
        if self.active:
            parts.append(feed(self.model, self.cache, [row.ids[-1:] for row in self.active]))
        if self.waiting:
            cache = self.model.new_cache(len(self.waiting))
            sources = [row.source for row in self.waiting if row.source is not None]
            parts.append(feed(self.model, cache, [row.visible() for row in self.waiting], sources))
            self.cache = self.cache.join(cache)
            self.active, self.waiting = self.active + self.waiting, []
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _restart_full_rows(self) -> None:
        """Move full rows to the waiting list, to be recomputed from the last half of their context."""
        self.waiting = self._take_out({row.number for row in self.active if self.decoding.is_full(row)})
        for row in self.waiting:
            self.decoding.shorten(row)

    def _take_out(self, numbers: set[int]) -> list[GrowingText]:
        """Remove these rows from the active ones and from the cache."""
        out = [row for row in self.active if row.number in numbers]
        if out:
            self.cache = self.cache.select([i for i, row in enumerate(self.active) if row.number not in numbers])
            self.active = [row for row in self.active if row.number not in numbers]
        return out


def open_all(
    decoding: Decoding,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    sources: Sequence[Sequence[int]] | None = None,
) -> list[GrowingText]:
    """A text for each prompt and its source.

    Raises:
        HeddleError: as in `Decoding.open`, or there is not one source for each prompt.
    """
    if sources is not None and len(sources) != len(prompts):
        raise HeddleError(f"{len(sources)} sources for {len(prompts)} prompts; give one source per prompt")
    each = zip(prompts, seeds, [None] * len(prompts) if sources is None else sources, strict=True)
    return [decoding.open(number, *given) for number, given in enumerate(each)]


def feed(
    model: Transformer, cache: Cache, pieces: Sequence[list[int]], sources: Sequence[list[int]] = ()
) -> Float[Tensor, "B V"]:
    """Logits after the next ids of every row of a cache; `sources` are what the encoder reads, in its first call."""
    tokens, counts = padded(pieces, model.device), [len(piece) for piece in pieces]
    layout = cache.advance(counts, model.device)
    source, source_layout = None, None
    if sources:
        source, lengths = padded(sources, model.device), [len(each) for each in sources]
        if len(set(lengths)) > 1:
            source_layout = Layout.padded(lengths, max(lengths), device=model.device)
    hidden = model(tokens, layout, source, source_layout, cache=cache).hidden
    if len(set(counts)) == 1:
        return model.logits(hidden[:, -1])
    ends = torch.tensor(counts, device=hidden.device) - 1
    return model.logits(hidden[torch.arange(len(counts), device=hidden.device), ends])


def padded(rows: Sequence[list[int]], device: torch.device) -> Int[Tensor, "B T"]:
    """Rows of ids of different lengths, filled at their ends."""
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)


@checked()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    end_of_text: int | None = None,
    seeds: Sequence[int] | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Iterator[Event]:
    """Yield every drawn token of every row. Arguments and errors are those of `Engine`."""
    engine = Engine(model, prompts, sampling, end_of_text, seeds, sources=sources)
    while engine:
        yield from engine.step()
