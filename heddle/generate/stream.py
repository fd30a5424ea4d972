"""The token loop: texts of different lengths go on together, each as if it were alone. One alone is a case of it."""

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

WORTH_PACKING = 32  # tokens of each text; packing the weights takes as long as the next ten to twenty of them


@dataclass(frozen=True)
class Event:
    """One drawn token.

    Attributes:
        row: the number of its prompt.
        token: its id.
        logprob: natural log of its probability under the model itself, before temperature and truncation.
        finish: why the row ends with it, or None: `end` it is an end of text, `length` it is the last of `max_tokens`,
            `context` the model cannot take it in. (`stop`, a stop text, is found where there is text.)
    """

    row: int
    token: int
    logprob: float
    finish: Finish | None


@dataclass
class Row:
    """A text as it grows."""

    number: int
    text: list[int]
    last: int  # tokens in the text when max_tokens are drawn
    seed: int
    start: int = 0  # where the tokens begin that the model sees


class Blocked:
    """What is never drawn: ids without text, and what a model's config bans.

    Args:
        banned: runs of ids; the last of a run is blocked where the text ends with the ones before it.
        ends: ids that end a text, and need none.
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
            raise HeddleError("every id of the model is banned or has no text: there is nothing to draw")

    def masked(self, logits: Float[Tensor, "B V"], texts: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """The logits with -inf where nothing may be drawn after these texts; the same tensor where all may be."""
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
    """Texts that grow by one token a step. A text that has ended leaves; the others do not notice.

    A row's tokens are a function of the model, its prompt, the sampling and its seed: what stands beside it changes
    nothing but the last bits of sums. A draw's randomness is keyed by the seed and the place in the text, so a text cut
    anywhere and taken up again goes on as it would have.

    Without `sampling.window`, a prompt longer than the context is refused, and a text ends when the context is full.
    That holds for rotary positions too: they could go on, but to where the model was never trained. With it, a longer
    prompt is cut to its last `context` tokens, and a text that has filled the context goes on from its last
    `context // 2`, which are computed again: about one more token computed for each one drawn, many in one pass.

    Args:
        model: used in evaluation mode and left as it was; in the precision it has. Where it is in evaluation mode by itself and
            texts may become long, its weights are packed (see `heddle.model.packing`), which only its memory tells.
        prompts: ids, one list for each row.
        sampling: how to draw, and when to end.
        end_of_text: an id that ends a text, and begins one whose prompt is empty (D-24). The ids that an imported
            model's config names do so without being given here, and what it bans is never drawn.
        seeds: one for each row; `sampling.seed` for all where left out, so that equal prompts go on alike.
        vocabulary: how many ids have text, where the model has more; the others are not drawn, but for those that end.

    Raises:
        HeddleError: a prompt is empty and there is no `end_of_text`; it is too long; or has ids unknown here.
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
            raise HeddleError(f"{len(seeds)} seeds for {len(prompts)} prompts; one for each is needed")
        model.check_predicts_next()
        self.model = model
        self.sampling = sampling
        ids = model.config.ids or SpecialIds()
        self.begin = end_of_text if ids.begin is None else ids.begin
        self.ends = {*ids.ends(), *(() if end_of_text is None else (end_of_text,))}
        self.blocked = Blocked(ids.banned, self.ends, vocabulary, model.vocab_size)
        self.context = model.config.context
        self.waiting = [self._row(number, *each) for number, each in enumerate(zip(prompts, seeds, strict=True))]
        self.going: list[Row] = []  # in the order of the cache
        self.cache = model.new_cache(0)
        self.parts = tuple(model.modules())
        if sampling.max_tokens >= WORTH_PACKING and not model.training:
            pack(model, room=available_memory() // 2)

    def __bool__(self) -> bool:
        """Whether any text goes on."""
        return bool(self.waiting or self.going)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Draw every row's next token: at most two forward passes, one for rows that go on, one for rows that begin."""
        with evaluating(self.model, self.parts):
            logits = self._logits()
        possible = self.blocked.masked(logits, [row.text for row in self.going])
        ids = choose(possible, self.sampling, [(row.seed, len(row.text)) for row in self.going])
        logprobs = log_probability(logits, ids).tolist()
        events = []
        for row, token, logprob in zip(self.going, ids.tolist(), logprobs, strict=True):
            if not isfinite(logprob):
                raise HeddleError(f"row {row.number}: the model's output is not a number; its weights are broken")
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

    def _row(self, number: int, prompt: Sequence[int], seed: int) -> Row:
        text = list(prompt)
        if not text and self.begin is not None:
            text = [self.begin]
        if not text:
            raise HeddleError(
                f"prompt {number} is empty, and there is no end-of-text token to begin with; give it text"
            )
        wrong = next((token for token in text if not 0 <= token < self.model.vocab_size), None)
        if wrong is not None:
            raise HeddleError(f"prompt {number} has the id {wrong}; this model knows 0 to {self.model.vocab_size - 1}")
        if len(text) > self.context and not self.sampling.window:
            raise HeddleError(
                f"prompt {number} has {len(text)} tokens, the model's context is {self.context}; "
                "shorten it, or set --window (in Python window=True) to go on from its last tokens"
            )
        return Row(number, text, len(text) + self.sampling.max_tokens, seed, max(0, len(text) - self.context))

    def _logits(self) -> Float[Tensor, "B V"]:
        """Logits after every row's text, which the cache then holds; all rows are going."""
        parts = []
        if self.going:
            parts.append(self._feed(self.cache, [row.text[-1:] for row in self.going]))
        if self.waiting:
            cache = self.model.new_cache(len(self.waiting))
            parts.append(self._feed(cache, [row.text[row.start :] for row in self.waiting]))
            self.cache = self.cache.join(cache)
            self.going, self.waiting = self.going + self.waiting, []
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
        return logits.cpu() if logits.device.type == "mps" else logits  # mps has no float64, which draws want

    def _finish(self, row: Row) -> Finish | None:
        if row.text[-1] in self.ends:
            return "end"
        if len(row.text) == row.last:
            return "length"
        return "context" if self._full(row) and not self.sampling.window else None

    def _full(self, row: Row) -> bool:
        """Whether the model cannot take in the row's last token."""
        return len(row.text) - row.start > self.context

    def _begin_again(self) -> None:
        """Full rows wait, to be computed from the last half of their context."""
        self.waiting = self._take_out({row.number for row in self.going if self._full(row)})
        for row in self.waiting:
            row.start = len(row.text) - max(1, self.context // 2)

    def _take_out(self, numbers: set[int]) -> list[Row]:
        """Remove these of the going rows, here and from the cache."""
        out = [row for row in self.going if row.number in numbers]
        if out:
            self.cache = self.cache.select([i for i, row in enumerate(self.going) if row.number not in numbers])
            self.going = [row for row in self.going if row.number not in numbers]
        return out


@checked()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    end_of_text: int | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[Event]:
    """Every drawn token of every row as it comes; arguments and refusals are those of `Loop`."""
    loop = Loop(model, prompts, sampling, end_of_text, seeds)
    while loop:
        yield from loop.step()


@checked()
def stream(
    model: Transformer, prompt: Sequence[int], sampling: SamplingConfig, end_of_text: int | None = None
) -> Iterator[int]:
    """The tokens with which one prompt goes on; the end of text is not among them."""
    for event in generate(model, [prompt], sampling, end_of_text):
        if event.finish != "end":
            yield event.token


@checked()
@contextmanager
def evaluating(model: nn.Module, parts: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in.

    `parts` are all modules of the model where they are known already: finding them takes as long as some of a step's products.
    """
    training = [module for module in (model.modules() if parts is None else parts) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
