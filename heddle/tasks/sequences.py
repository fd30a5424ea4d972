"""Common functions of sequence-to-sequence tasks: ids around texts, rows assembled from parts, greedy answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.config.decoding import SamplingConfig
from heddle.data.pack import within
from heddle.errors import HeddleError
from heddle.generate.stream import stream
from heddle.generate.translate import Marks
from heddle.model.transformer import Transformer
from heddle.tasks.task import DataSpec

Ids = npt.NDArray[np.int64]


def marks_of(kind: str, spec: DataSpec) -> Marks:
    """The ids around texts, for a task of this kind.

    Raises:
        HeddleError: as in `Marks.of`, or there is no tokenizer.
    """
    if spec.tokenizer is None:
        raise HeddleError(f"the task {kind!r} needs the tokenizer of the texts, for its special tokens")
    return Marks.of(spec.model, spec.tokenizer)


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
        """The same ids as part of each of `count` texts."""
        return cls(np.array(ids, dtype=np.int64), np.zeros(count, dtype=np.int64), np.full(count, len(ids)))


@dataclass(frozen=True)
class PaddedTexts:
    """Texts of ids, one after another.

    Attributes:
        ids: Int[Σ lengths].
        lengths: Int[N], ids of each text.
    """

    ids: Ids
    lengths: Ids

    @classmethod
    def of(cls, *parts: Slices) -> "PaddedTexts":
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
    """Int[B T], ids in rows whose first `filled` places have ids; the others are `fill`."""
    rows = np.full((len(filled), width), fill, dtype=np.int64)
    rows[np.arange(width) < np.array(filled)[:, None]] = ids
    return rows


def greedy_answer(
    model: Transformer, prompt: Sequence[int], source: Sequence[int] | None, end: int, most: int
) -> list[int]:
    """Generate at most `most` ids greedily after a prompt, without the end (L0-74, L1-77)."""
    return list(stream(model, prompt, SamplingConfig(max_tokens=most, temperature=0), end, source))
