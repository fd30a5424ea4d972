"""Words with their vectors: neighbours, analogies, files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heddle.checks import at_least, checked
from heddle.convert.word_vectors import Form, read_vectors, write_vectors
from heddle.display import displayed
from heddle.errors import HeddleError, did_you_mean, pluralize

Neighbours = list[tuple[str, float]]


@displayed(".words, .array, .near(word)")
@dataclass(frozen=True, eq=False)
class WordVectors:
    """V words, each with a vector of D numbers.

    Attributes:
        words: the words, the most frequent first if they were trained here.
        array: Float[V, D], fp32; row i belongs to `words[i]`.
        losses: mean loss in each epoch of training; empty if read from a file.
        tokens: words of the text they were trained on, without rare ones; 0 if read from a file.
    """

    words: tuple[str, ...]
    array: npt.NDArray[np.float32]
    losses: tuple[float, ...] = field(default=(), repr=False)
    tokens: int = 0

    @classmethod
    @checked()
    def read(cls, path: str | Path, tell: Callable[[str], None] | None = None) -> "WordVectors":
        """Read a file of vectors, in word2vec's text or binary format or in GloVe's; for a repeated word, the last vector counts.

        Raises:
            HeddleError: the file cannot be read, or has another format.
        """
        vectors = dict(read_vectors(path, tell))
        if not vectors:
            raise HeddleError(f"{path}: there are no words")
        return cls(tuple(vectors), np.stack(list(vectors.values())))

    def __len__(self) -> int:
        return len(self.words)

    @checked()
    def __getitem__(self, word: str) -> npt.NDArray[np.float32]:
        """The vector of a word: Float[D].

        Raises:
            HeddleError: the word has no vector.
        """
        vector: npt.NDArray[np.float32] = self.array[self._place(word)]
        return vector

    @checked(count=at_least(1))
    def near(self, word: str, count: int = 10) -> Neighbours:
        """The words with the highest cosine similarity, and the cosines, highest first; without the word itself.

        Raises:
            HeddleError: the word has no vector.
        """
        place = self._place(word)
        return self._nearest(self._units[place], [place], count)

    @checked(count=at_least(1))
    def analogy(self, a: str, b: str, c: str, count: int = 10) -> Neighbours:
        """Words that are to `c` as `b` is to `a`: the nearest to b - a + c of unit vectors, without these three words.

        Mikolov et al. 2013, "Linguistic Regularities in Continuous Space Word Representations".

        Raises:
            HeddleError: a word has no vector.
        """
        places = [self._place(word) for word in (a, b, c)]
        first, second, third = self._units[places]
        return self._nearest(second - first + third, places, count)

    @checked()
    def save(self, path: str | Path, form: Form | None = None, overwrite: bool = False) -> None:
        """Write the vectors to a file, atomically.

        Args:
            form: word2vec's `text` or `binary` format, or `glove`, which is text without a first line of sizes; defaults to binary
                for a `.bin` file and to text for any other.

        Raises:
            HeddleError: the file exists and is not to be overwritten, or it cannot be written.
        """
        write_vectors(path, self.words, self.array, form, overwrite)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def _units(self) -> npt.NDArray[np.float32]:
        """Float[V, D], the vectors scaled to length 1; a zero vector stays zero."""
        lengths = np.linalg.norm(self.array, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        units: npt.NDArray[np.float32] = self.array / lengths
        return units

    def _place(self, word: str) -> int:
        if word not in self._places:
            suggestion = did_you_mean(word, self.words) if len(self.words) < 100_000 else ""
            raise HeddleError(
                f"{word!r} is not one of the {pluralize(len(self), 'word')} with a vector.{suggestion}".rstrip(".")
            )
        return self._places[word]

    def _nearest(self, target: npt.NDArray[np.float32], excluded: Sequence[int], count: int) -> Neighbours:
        cosines: npt.NDArray[np.float32] = self._units @ (target / max(float(np.linalg.norm(target)), 1e-12))
        cosines[list(excluded)] = -np.inf
        order = np.argsort(-cosines, kind="stable")[: min(count, len(self) - len(set(excluded)))]
        return [(self.words[place], float(cosines[place])) for place in order]
