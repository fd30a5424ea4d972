"""The token loop: texts of different lengths continue together, each as if it were alone."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.account.machine import available_memory
from heddle.checks import checked
from heddle.config.ids import SpecialIds
from heddle.config.sampling import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.sampling import choose, log_probability
from heddle.model.packing import pack
from heddle.model.transformer import Transformer
from heddle.nn.state import Cache

Finish = Literal["end", "stop", "length", "context"]

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


@dataclass
class GrowingText:
    """A text as it grows."""

    number: int
    text: list[int]
    last: int  # tokens in the text once max_tokens are drawn
    seed: int
    start: int = 0  # the first token that the model sees


class Blocked:
    """Ids that are never drawn: those without text, and those that a model's config bans.

    Args:
        banned: runs of ids; the last id of a run is blocked where the text ends with the ids before it.
        ends: ids that end a text, which may be drawn although they have no text.
        vocabulary: how many ids have text; None: all.
        count: V.

    Raises:
        HeddleError: no id is left to draw.
    """

    def __init__(
        self, banned: Sequence[Sequence[int]], ends: Collection[int], vocabulary: int | None, count: int
    ) -> None:
        textless = range(count if vocabulary is None else vocabulary, count)
        single = {run[0] for run in banned if len(run) == 1 and run[0] not in ends}
        self.always = sorted(single | {id for id in textless if id not in ends})
        self.runs = [tuple(run) for run in banned if len(run) > 1]
        if len(self.always) == count:
            raise HeddleError(
                "every id of the model is banned or has no text, so nothing can be drawn; check config.ids"
            )

    def masked(self, logits: Float[Tensor, "B V"], texts: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """The logits with -inf for ids that are blocked after these texts; the same tensor if none is."""
        if self.always:
            logits = logits.index_fill(-1, torch.tensor(self.always, device=logits.device), -torch.inf)
        found = [(row, run[-1]) for row, text in enumerate(texts) for run in self.runs if _ends_with(text, run[:-1])]
        if found:
            rows, ids = (torch.tensor(each, device=logits.device) for each in zip(*found, strict=True))
            logits = logits.index_put((rows, ids), logits.new_tensor(-torch.inf))
        return logits


def _ends_with(text: Sequence[int], run: Sequence[int]) -> bool:
    return tuple(text[-len(run) :]) == tuple(run)


class Loop:
    """Texts that grow by one token per step. A text that ends leaves the batch without affecting the others.

    A row's tokens are a function of the model, its prompt, the sampling and its seed; other rows change only the last bits of
    sums. A draw's randomness is keyed by the seed and the position in the text, so a text that is cut anywhere and resumed
    continues the same way.

    Without `sampling.window`, a prompt longer than the context is refused, and a text ends when the context is full. This
    applies to rotary positions too, since the model was never trained beyond the context. With it, a longer prompt is cut to
    its last `context` tokens, and a text that has filled the context continues from its last `context // 2` tokens, which are
    recomputed: about one extra token per drawn token, many in one pass.

    Args:
        model: used in evaluation mode, then returned to its mode; its precision is kept. If it is already in evaluation mode
            and texts may become long, its weights are packed (see `heddle.model.packing`), which changes only its memory.
        prompts: ids, one list per row.
        sampling: how to draw, and when to end.
        end_of_text: an id that ends a text, and starts one whose prompt is empty (D-24). The special ids in an imported
            model's config apply without being passed here, and the ids that it bans are never drawn.
        seeds: one per row; None: `sampling.seed` for all rows, so that equal prompts continue alike.
        vocabulary: how many ids have text, if the model has more; other ids are not drawn, except those that end a text.

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
        model.check_predicts_next()
        self.model = model
        self.sampling = sampling
        ids = model.config.ids or SpecialIds()
        self.begin = end_of_text if ids.begin is None else ids.begin
        self.ends = {*ids.ends(), *(() if end_of_text is None else (end_of_text,))}
        self.blocked = Blocked(ids.banned, self.ends, vocabulary, model.vocab_size)
        self.context = model.config.context
        self.waiting = [self._row(number, *each) for number, each in enumerate(zip(prompts, seeds, strict=True))]
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
        possible = self.blocked.masked(logits, [row.text for row in self.active])
        ids = choose(possible, self.sampling, [(row.seed, len(row.text)) for row in self.active])
        logprobs = log_probability(logits, ids).tolist()
        events = []
        for row, token, logprob in zip(self.active, ids.tolist(), logprobs, strict=True):
            if not isfinite(logprob):
                raise HeddleError(f"row {row.number}: the model's output is NaN or infinite; its weights are broken")
            row.text.append(token)
            events.append(Event(row.number, token, logprob, self._finish(row)))
        self.leave({event.row for event in events if event.finish})
        self._begin_again()
        return sorted(events, key=lambda event: event.row)

    @checked()
    def leave(self, rows: set[int]) -> None:
        """End these rows, by the numbers of their prompts."""
        self.waiting = [row for row in self.waiting if row.number not in rows]
        self._take_out(rows)

    def _row(self, number: int, prompt: Sequence[int], seed: int) -> GrowingText:
        text = list(prompt)
        if not text and self.begin is not None:
            text = [self.begin]
        if not text:
            raise HeddleError(
                f"prompt {number} is empty, and there is no end-of-text token to start from; give it text"
            )
        wrong = next((token for token in text if not 0 <= token < self.model.vocab_size), None)
        if wrong is not None:
            raise HeddleError(f"prompt {number} has the id {wrong}; ids must be from 0 to {self.model.vocab_size - 1}")
        if len(text) > self.context and not self.sampling.window:
            raise HeddleError(
                f"prompt {number} has {len(text)} tokens, but the model's context is {self.context}; "
                "shorten it, or set --window (in Python window=True) to continue from its last tokens"
            )
        return GrowingText(number, text, len(text) + self.sampling.max_tokens, seed, max(0, len(text) - self.context))

    def _logits(self) -> Float[Tensor, "B V"]:
        """Logits after every active row's text, which the cache then holds."""
        parts = []
        if self.active:
            parts.append(self._feed(self.cache, [row.text[-1:] for row in self.active]))
        if self.waiting:
            cache = self.model.new_cache(len(self.waiting))
            parts.append(self._feed(cache, [row.text[row.start :] for row in self.waiting]))
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
            last = hidden[:, -1]
        else:
            ends = torch.tensor(counts, device=hidden.device) - 1
            last = hidden[torch.arange(len(counts), device=hidden.device), ends]
        logits = self.model.logits(last)
        return logits.cpu() if logits.device.type == "mps" else logits  # mps has no float64, which draws need

    def _finish(self, row: GrowingText) -> Finish | None:
        if row.text[-1] in self.ends:
            return "end"
        if len(row.text) == row.last:
            return "length"
        return "context" if self._full(row) and not self.sampling.window else None

    def _full(self, row: GrowingText) -> bool:
        """Whether the row's last token does not fit into the context."""
        return len(row.text) - row.start > self.context

    def _begin_again(self) -> None:
        """Move full rows to the waiting list, to be recomputed from the last half of their context."""
        self.waiting = self._take_out({row.number for row in self.active if self._full(row)})
        for row in self.waiting:
            row.start = len(row.text) - max(1, self.context // 2)

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
    """Yield every drawn token of every row. Arguments and errors are those of `Loop`."""
    loop = Loop(model, prompts, sampling, end_of_text, seeds)
    while loop:
        yield from loop.step()


@checked()
def stream(
    model: Transformer, prompt: Sequence[int], sampling: SamplingConfig, end_of_text: int | None = None
) -> Iterator[int]:
    """Yield the tokens that continue one prompt, without the end of text."""
    for event in generate(model, [prompt], sampling, end_of_text):
        if event.finish != "end":
            yield event.token


@checked()
@contextmanager
def evaluating(model: nn.Module, modules: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in.

    `modules` are all modules of the model, if already known: finding them takes as long as some of a step's products.
    """
    training = [module for module in (model.modules() if modules is None else modules) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
