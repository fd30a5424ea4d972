"""Rows that start: their prompts are read together, in pieces if they are long, and not again where an earlier one began alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.generate.logprobs import SampledToken, log_probabilities, top_of
from heddle.generate.processors import TokenSequence
from heddle.generate.stream import DecodingRules
from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache

LEAST_SHARED = 16  # tokens that two prompts must begin with for a kept state to be worth copying


@dataclass
class PrefillRow:
    """A text in an engine.

    Attributes:
        text: its ids.
        decoding: how it is continued.
        echo: whether the log probabilities of its prompt are still wanted.
    """

    text: TokenSequence
    decoding: DecodingRules
    echo: bool = False


class PrefillBatch:
    """Rows whose prompts are being read. All distinct prompts have been read up to the same place.

    Args:
        rows: the rows; equal prompts are read once.
        cache: holds the first `read` tokens of each distinct prompt.
        read: how many tokens.
    """

    def __init__(self, rows: Sequence[PrefillRow], cache: Cache, read: int) -> None:
        self.rows, self.cache, self.read = list(rows), cache, read
        distinct = list(dict.fromkeys(_key(row.text) for row in rows))
        self.places = [distinct.index(_key(row.text)) for row in rows]
        self.prompts = [list(prompt) for prompt, _ in distinct]
        self.sources = [list(source) for _, source in distinct if source is not None]
        self.samples: list[list[SampledToken]] = [[] for _ in distinct]

    @property
    def echo(self) -> bool:
        """Whether a row wants the log probabilities of its prompt."""
        return any(row.echo for row in self.rows)

    def next_pieces(self, chunk: int | None) -> tuple[list[list[int]], list[list[int]]]:
        """What to read next of each prompt, and the sources, if they have not been read."""
        end = None if chunk is None or len(self.prompts) > 1 else self.read + chunk
        sources = self.sources if self.cache.encoded is None else []
        return [prompt[self.read : end] for prompt in self.prompts], sources

    def listen(self, pieces: Sequence[list[int]], logits: Float[Tensor, "N V"]) -> Float[Tensor, "B V"]:
        """Note the log probabilities of the prompts' tokens. Returns the logits after the pieces.

        Args:
            pieces: what was read of each prompt.
            logits: those after every token of the pieces. Each predicts the next token of its prompt.
        """
        count = max(row.decoding.alternatives for row in self.rows)
        parts = logits.split([len(piece) for piece in pieces])
        for part, prompt, told in zip(parts, self.prompts, self.samples, strict=True):
            following = torch.tensor(prompt[self.read + 1 : self.read + 1 + len(part)], device=logits.device)
            logs = log_probabilities(part[: len(following)])
            found = logs.gather(-1, following[:, None].long())[:, 0].tolist()
            told += [SampledToken(*each) for each in zip(following.tolist(), found, top_of(logs, count), strict=True)]
        return torch.stack([part[-1] for part in parts])

    def heard(self, row: PrefillRow) -> tuple[SampledToken, ...]:
        """The log probabilities of a row's prompt, if it wants them and has not had them."""
        if not row.echo:
            return ()
        row.echo, count = False, row.decoding.alternatives
        told = self.samples[self.places[self.rows.index(row)]]
        return tuple(SampledToken(each.id, each.logprob, each.top[:count]) for each in told)

    def read_more(self, pieces: Sequence[list[int]]) -> bool:
        """Count the pieces as read; whether more is to be read."""
        self.read += max(map(len, pieces))
        return any(len(prompt) > self.read for prompt in self.prompts)

    def spread(self) -> Cache:
        """The cache with a row for each row, in order."""
        whole = self.places == list(range(len(self.prompts)))
        return self.cache if whole else self.cache.select(self.places)

    def leave(self, numbers: set[int]) -> bool:
        """Forget these rows; whether any is left."""
        left = [place for place, row in enumerate(self.rows) if row.text.number not in numbers]
        self.rows, self.places = [self.rows[place] for place in left], [self.places[place] for place in left]
        return bool(left)


class PrefixCache:
    """States of prompts that were read, of which later prompts that begin alike copy the beginning.

    Only models that keep every token apart and see it from later ones alone can use them; for others, every prompt is read
    from its start.

    Args:
        model: the model.
        count: prompts to keep; the one that was used longest ago goes first.
    """

    def __init__(self, model: Transformer, count: int) -> None:
        self.model, self.count = model, count
        empty = model.new_cache(0)
        self.usable = count > 0 and empty.truncates and not empty.prefix and model.encoder is None
        self.kept: list[tuple[list[int], Cache]] = []  # the latest last

    def open(
        self, waiting: list[PrefillRow], room: int | None, chunk: int | None
    ) -> tuple[PrefillBatch, list[PrefillRow]]:
        """Take the first rows that can start together; also return those that still wait.

        Args:
            waiting: at least one row.
            room: rows to take at most.
            chunk: tokens of prompts to read at a time.
        """
        kept, shared = self._longest(waiting[0])
        taken, longest, distinct = list[PrefillRow](), 0, set[object]()
        for row in waiting[:room]:
            here = shared if not taken else min(shared, 0 if kept is None else _common(kept[0], row.text.visible()))
            distinct |= {_key(row.text)}
            longest = max(longest, len(row.text.visible()) + len(row.text.source or ()))
            fits = chunk is None or (longest - here) * len(distinct) <= chunk
            # Rows that share little with the kept prompt would make the others read again what they share.
            if taken and (not fits or 2 * here < shared or row.echo != taken[0].echo):
                break
            shared = here
            taken.append(row)
        number = len({_key(row.text) for row in taken})
        cache = self.model.new_cache(number)
        if kept is not None and shared:
            cache = kept[1].select([0] * number)
            cache.truncate([shared] * number)
        return PrefillBatch(taken, cache, shared if kept is not None else 0), waiting[len(taken) :]

    def keep(self, opening: PrefillBatch, logits: Float[Tensor, "N V"]) -> None:
        """Keep the states of an opening whose prompts have been read.

        Args:
            logits: those after each prompt. If one is NaN, so are states, which no other text may meet.
        """
        if not self.usable:
            return
        broken = logits.isnan().any(-1).tolist()
        for place, prompt in enumerate(opening.prompts):
            if len(prompt) >= LEAST_SHARED and not broken[place]:
                self.kept = [each for each in self.kept if each[0] != prompt[: len(each[0])]]
                self.kept.append((prompt, opening.cache.select([place])))
        self.kept = self.kept[-self.count :]

    def _longest(self, row: PrefillRow) -> tuple[tuple[list[int], Cache] | None, int]:
        """The kept prompt that begins most like a row's, and how many tokens they share, at most all but the last."""
        if not self.usable or row.echo:  # an echo needs the logits of the whole prompt
            return None, 0
        prompt = row.text.visible()
        found = max(self.kept, key=lambda each: _common(each[0], prompt), default=None)
        shared = 0 if found is None else _common(found[0], prompt)
        if found is None or shared < LEAST_SHARED:
            return None, 0
        self.kept = [each for each in self.kept if each is not found] + [found]
        return found, shared


def draw_each(
    decodings: Sequence[DecodingRules], texts: Sequence[TokenSequence], logits: Float[Tensor, "B V"]
) -> list[SampledToken]:
    """The next id of each text, by its own decoding; those that share one are drawn together."""
    places: dict[int, list[int]] = {}
    for place, decoding in enumerate(decodings):
        places.setdefault(id(decoding), []).append(place)
    found: dict[int, SampledToken] = {}
    for some in places.values():
        part = logits if len(places) == 1 else logits[some]
        found |= zip(some, decodings[some[0]].draw(part, [texts[place] for place in some]), strict=True)
    return [found[place] for place in range(len(texts))]


def _common(kept: Sequence[int], prompt: Sequence[int]) -> int:
    """How many first ids are the same, leaving one of the prompt, whose logits are needed."""
    most = min(len(kept), len(prompt) - 1)
    return next((place for place in range(most) if kept[place] != prompt[place]), max(most, 0))


def _key(text: TokenSequence) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """What the model reads of a text."""
    return tuple(text.visible()), None if text.source is None else tuple(text.source)
