"""Neighbouring words of a text: subsampling, random windows, and blocks for matrix products."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.vectors.corpus import WordCorpus

CHUNK = 1 << 18  # words of the text at a time; windows end at a chunk's ends, which is too rare to matter


@dataclass(frozen=True)
class Blocks:
    """R blocks of C consecutive words of a text, each with the S = C + 2 · window words around and in it.

    Attributes:
        centers: Int[R, C], ids.
        around: Int[R, S], ids; center c is at place c + window.
        distances: Int[C, S], how far each word around is from each center.
        center_documents, around_documents: Int[R, C] and Int[R, S], the number of each word's document.
        reach: Int[R, C], the window of each center; 0 fills the last block.
        read: words of the text, before subsampling.
    """

    centers: Tensor
    around: Tensor
    distances: Tensor
    center_documents: Tensor
    around_documents: Tensor
    reach: Tensor
    read: int

    def __len__(self) -> int:
        return len(self.centers)

    def pairs(self, part: slice) -> Tensor:
        """Float[r, C, S] of some blocks: 1 where a center and a word around it are neighbours, else 0."""
        near = (self.distances > 0) & (self.distances <= self.reach[part].unsqueeze(-1))
        return (near & (self.around_documents[part].unsqueeze(1) == self.center_documents[part].unsqueeze(-1))).float()


def keep_probability(counts: npt.NDArray[np.int64], subsampling: float) -> npt.NDArray[np.float64]:
    """The probability of keeping each word: √(t / f) for words with a share f above t (Mikolov et al. 2013b, equation 5).

    Args:
        counts: Int[V].
        subsampling: t; 0 keeps everything.
    """
    if not subsampling:
        return np.ones(len(counts))
    chance: npt.NDArray[np.float64] = np.minimum(1.0, np.sqrt(subsampling * counts.sum() / counts))
    return chance


def blocks_of(
    corpus: WordCorpus, window: int, keep: npt.NDArray[np.float64], centers: int, random: np.random.Generator
) -> Iterator[Blocks]:
    """One pass over a text, in chunks; the blocks of a chunk are shuffled, so that a step reads from many places.

    Args:
        window: the largest distance of a neighbour.
        keep: Float[V], the probability of keeping each word.
        centers: words in a block.
    """
    steps = torch.arange(centers + 2 * window) - window - torch.arange(centers).unsqueeze(1)
    first = np.zeros(len(corpus.ids), bool)
    first[corpus.starts] = True
    for start in range(0, len(corpus.ids), CHUNK):
        ids = corpus.ids[start : start + CHUNK]
        documents = np.cumsum(first[start : start + CHUNK])
        is_kept = random.random(len(ids), np.float32) < keep[ids]
        count = int(is_kept.sum())
        reach = random.integers(1, window + 1, count)
        fill = -count % centers
        words = np.pad(ids[is_kept].astype(np.int64), (window, fill + window))
        # Padding belongs to no document.
        documents = np.pad(documents[is_kept], (window, fill + window), constant_values=-1)
        order = random.permutation((count + fill) // centers)
        outer = [_cut(array, centers, window)[order] for array in (words, documents)]
        inner = [_cut(array[window : len(array) - window], centers, 0)[order] for array in (words, documents)]
        reaches = np.pad(reach, (0, fill)).reshape(-1, centers)[order]
        yield Blocks(
            torch.from_numpy(inner[0]),
            torch.from_numpy(outer[0]),
            steps.abs(),
            torch.from_numpy(inner[1]),
            torch.from_numpy(outer[1]),
            torch.from_numpy(reaches),
            len(ids),
        )


def _cut(array: npt.NDArray[np.int64], centers: int, window: int) -> npt.NDArray[np.int64]:
    """Int[R, centers + 2 · window], an overlapping slice for each block."""
    size = centers + 2 * window
    if len(array) < size:
        return np.empty((0, size), np.int64)
    return np.lib.stride_tricks.sliding_window_view(array, size)[::centers]
