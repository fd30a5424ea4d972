"""Many texts at once: rows of different lengths share each forward pass, and each continues as if it were alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.account.machine import available_memory
from heddle.checks import checked
from heddle.config.sampling import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.stream import Finish, GrowingText, TextRules, evaluating
from heddle.model.packing import pack
from heddle.model.transformer import Transformer
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
    written in `TextRules`.

    Args:
        model: used in evaluation mode, then returned to its mode; its precision is kept. If it is already in evaluation mode
            and texts may become long, its weights are packed (see `heddle.model.packing`), which changes only its memory.
        prompts: ids, one list per row.
        sampling: how to draw, and when to end.
        end_of_text: see `TextRules`.
        seeds: one per row; None: `sampling.seed` for all rows, so that equal prompts continue alike.
        vocabulary: see `TextRules`.

    Raises:
        HeddleError: a prompt is empty and there is no `end_of_text`, is too long, or has ids that the model does not have.
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
    ) -> None:
        seeds = [sampling.seed] * len(prompts) if seeds is None else seeds
        if len(seeds) != len(prompts):
            raise HeddleError(f"{len(seeds)} seeds for {len(prompts)} prompts; give one seed per prompt")
        self.model = model
        self.rules = TextRules(model, sampling, end_of_text, vocabulary)
        pairs = zip(prompts, seeds, strict=True)
        self.waiting = [self.rules.open(number, prompt, seed) for number, (prompt, seed) in enumerate(pairs)]
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
        for row, (token, logprob) in zip(self.active, self.rules.draw(logits, self.active), strict=True):
            row.ids.append(token)
            events.append(Event(row.number, token, logprob, self.rules.finish(row)))
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
            parts.append(self._feed(self.cache, [row.ids[-1:] for row in self.active]))
        if self.waiting:
            cache = self.model.new_cache(len(self.waiting))
            parts.append(self._feed(cache, [row.visible() for row in self.waiting]))
            self.cache = self.cache.join(cache)
            self.active, self.waiting = self.active + self.waiting, []
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _feed(self, cache: Cache, pieces: list[list[int]]) -> Float[Tensor, "B V"]:
        """Logits after the next tokens of every row."""
        counts = [len(piece) for piece in pieces]
        filled = [piece + [0] * (max(counts) - len(piece)) for piece in pieces]
        layout = cache.advance(counts, self.model.device)
        hidden = self.model(torch.tensor(filled, device=self.model.device), layout, cache=cache).hidden
        if len(set(counts)) == 1:
            return self.model.logits(hidden[:, -1])
        ends = torch.tensor(counts, device=hidden.device) - 1
        return self.model.logits(hidden[torch.arange(len(counts), device=hidden.device), ends])

    def _restart_full_rows(self) -> None:
        """Move full rows to the waiting list, to be recomputed from the last half of their context."""
        self.waiting = self._take_out({row.number for row in self.active if self.rules.is_full(row)})
        for row in self.waiting:
            self.rules.shorten(row)

    def _take_out(self, numbers: set[int]) -> list[GrowingText]:
        """Remove these rows from the active ones and from the cache."""
        out = [row for row in self.active if row.number in numbers]
        if out:
            self.cache = self.cache.select([i for i, row in enumerate(self.active) if row.number not in numbers])
            self.active = [row for row in self.active if row.number not in numbers]
        return out


@checked()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    end_of_text: int | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[Event]:
    """Yield every drawn token of every row. Arguments and errors are those of `Engine`."""
    engine = Engine(model, prompts, sampling, end_of_text, seeds)
    while engine:
        yield from engine.step()
