"""A text as ids of its frequent words."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.errors import HeddleError, pluralize
from heddle.progress import Pace
from heddle.text.base import utf8
from heddle.text.word_splitter import WordSplitter

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class WordCorpus:
    """A text without its rare words.

    Attributes:
        words: the vocabulary, most frequent first; words of equal count are sorted by character.
        counts: Int[V], how often each word occurs.
        ids: Int[N], the text as positions in `words`.
        starts: Int[documents], where each document starts in `ids`.
        read: words of the text, including rare ones.
    """

    words: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    ids: Ids
    starts: npt.NDArray[np.int64]
    read: int


def read_corpus(
    texts: Iterable[str], splitter: WordSplitter, min_count: int, tell: Callable[[str], None] | None = None
) -> WordCorpus:
    """Read texts once, each a document, and keep the words that occur at least `min_count` times.

    Memory is four bytes for each word of the text, and the vocabulary.

    Raises:
        HeddleError: fewer than two words are frequent enough.
    """
    ids_of: defaultdict[str, int] = defaultdict()
    ids_of.default_factory = ids_of.__len__  # a new word gets the next id
    parts, ends, read = [np.empty(0, np.int32)], [0], 0
    pace = Pace(tell)
    for text in texts:
        if not text.isascii():
            utf8(text)
        for pieces in splitter(text):
            parts.append(np.fromiter(map(ids_of.__getitem__, pieces), np.int32, len(pieces)))
            read += len(pieces)
            pace.report(read, lambda rate: f"{read:,} words read, {rate:,.0f} words/s")  # noqa: B023
        ends.append(read)
    ids = np.concatenate(parts)
    words = list(ids_of)
    counts = np.bincount(ids, minlength=len(words))
    frequent = np.flatnonzero(counts >= min_count).tolist()
    if len(frequent) < 2:
        occur = "occurs" if len(frequent) == 1 else "occur"
        at_least = f" at least min_count = {min_count} times" if min_count > 1 else ""
        raise HeddleError(
            f"the text has {pluralize(len(frequent), 'word')} that {occur}{at_least}; vectors need two or more: "
            f"{'lower min_count or ' if min_count > 1 else ''}give more text"
        )
    frequent.sort(key=lambda number: (-counts[number], words[number]))
    new_ids = np.full(len(words), -1, np.int32)
    new_ids[frequent] = np.arange(len(frequent), dtype=np.int32)
    ids = new_ids[ids]
    is_frequent = ids >= 0
    before = np.concatenate([[0], np.cumsum(is_frequent)])  # how many known words come before each place
    starts = np.unique(before[ends[:-1]])
    starts = starts[starts < before[-1]]  # the last documents may be empty
    return WordCorpus(tuple(words[number] for number in frequent), counts[frequent], ids[is_frequent], starts, read)
