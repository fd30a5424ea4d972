"""What sequence-to-sequence tasks share: the ids around their texts, and the most probable target of a source."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from heddle.config.ids import SpecialIds
from heddle.data.pack import within
from heddle.errors import HeddleError
from heddle.generate.stream import evaluating
from heddle.model.transformer import Transformer
from heddle.train.task import Reading

BOUNDARY = "<start_translation>"  # between source and target in a decoder alone (L1-81)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Marks:
    """The ids around the texts of a pair.

    Attributes:
        begin: before a source: what a published tokenizer puts there, else nothing.
        start: before a target. In a decoder alone the boundary; in an encoder-decoder the id that its decoder starts with,
            which is the end of text unless an imported model has another, and the id that such a model must generate first.
        end: after a target, and in an encoder-decoder after a source.
    """

    begin: tuple[int, ...]
    start: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, kind: str, reading: Reading) -> "Marks":
        """The ids for a task of this kind, with its model and its tokenizer.

        Raises:
            HeddleError: there is no tokenizer, or it has no id that ends a text or, for a decoder alone, no boundary.
        """
        tokenizer, ids = reading.tokenizer, reading.model.ids or SpecialIds()
        if tokenizer is None:
            raise HeddleError(f"the task {kind!r} needs the tokenizer of the texts, for its special tokens")
        end = next(iter(ids.ends()), tokenizer.end_of_text)
        if end is None:
            raise HeddleError("the tokenizer has no token that ends a text: add <|endoftext|> to special_tokens")
        if reading.model.encoder is None:
            if BOUNDARY not in tokenizer.special:
                raise HeddleError(
                    f"the tokenizer has no token between source and target, which a decoder alone needs: "
                    f"add {BOUNDARY} to special_tokens, or train a tokenizer"
                )
            return cls(tokenizer.begins, (tokenizer.special[BOUNDARY],), end)
        start = end if ids.decoder_start is None else ids.decoder_start
        return cls(tokenizer.begins, (start, *(() if ids.forced_begin is None else (ids.forced_begin,))), end)


@dataclass(frozen=True)
class Slices:
    """One part of each of N texts.

    Attributes:
        values: ids.
        starts: Int[N], where each text's part starts among them.
        sizes: Int[N], how many ids it has.
    """

    values: npt.NDArray[np.integer]
    starts: Ids
    sizes: Ids

    @classmethod
    def same(cls, ids: Sequence[int], count: int) -> "Slices":
        """A part that `count` texts have in common."""
        return cls(np.array(ids, dtype=np.int64), np.zeros(count, dtype=np.int64), np.full(count, len(ids)))


@dataclass(frozen=True)
class Texts:
    """Texts of ids, one after another.

    Attributes:
        ids: Int[Σ lengths].
        lengths: Int[N], ids of each text.
    """

    ids: Ids
    lengths: Ids

    @classmethod
    def of(cls, *parts: Slices) -> "Texts":
        """N texts of several parts each, all at once: a step on a GPU may read thousands."""
        sizes = np.stack([part.sizes for part in parts], axis=1)
        ends = np.cumsum(sizes).reshape(sizes.shape)
        ids = np.empty(sizes.sum(), dtype=np.int64)
        for end, part in zip(ends.T, parts, strict=True):
            inside = within(part.sizes)
            ids[np.repeat(end - part.sizes, part.sizes) + inside] = part.values[
                np.repeat(part.starts, part.sizes) + inside
            ]
        return cls(ids, sizes.sum(axis=1))


def in_rows(ids: Ids, filled: Sequence[int], width: int, fill: int) -> Ids:
    """Int[B T], ids in rows of which so many places are filled; the others are `fill`."""
    rows = np.full((len(filled), width), fill, dtype=np.int64)
    rows[np.arange(width) < np.array(filled)[:, None]] = ids
    return rows


@torch.no_grad()
def greedy(model: Transformer, known: Sequence[int], source: Sequence[int] | None, end: int, most: int) -> list[int]:
    """The most probable continuation, token by token, without its end (L0-74, L1-77).

    Args:
        model: an encoder-decoder or a decoder.
        known: the ids that the decoder starts with.
        source: the encoder's ids; None for a decoder alone.
        end: the id after which nothing follows.
        most: the longest continuation to return.
    """
    given = None if source is None else torch.tensor([list(source)], device=model.device)
    cache, new, found = model.new_cache(1), list(known), list[int]()
    with evaluating(model):
        while len(found) < most:
            hidden = model(torch.tensor([new], device=model.device), source=given, cache=cache).hidden
            token = int(model.logits(hidden[0, -1]).argmax())
            if token == end:
                break
            found.append(token)
            new, given = [token], None
    return found
