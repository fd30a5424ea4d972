"""Splits texts into the words of the `words` tokenizer, at the speed of Python's regular expressions."""

import re
from collections.abc import Iterator
from itertools import groupby

from heddle.text.words import letters_among

SLICE = 1 << 20  # characters cut at a time, so that a huge text never becomes one list of words


class WordSplitter:
    """Splits texts into the pieces of the `words` tokenizer without whitespace: words and, optionally, punctuation.

    The tokenizer's own library decides which characters are parts of words; each character is looked up once.

    Args:
        lowercase: lower-case the text first.
        punctuation: also yield the pieces that are not words, one character each.
    """

    def __init__(self, lowercase: bool = False, punctuation: bool = True) -> None:
        self.lowercase = lowercase
        self.punctuation = punctuation
        self._seen: set[str] = set()
        self._letters: set[str] = set()
        self._learn(set(map(chr, range(128))))

    def __call__(self, text: str) -> Iterator[list[str]]:
        """Yield the pieces of a text, as one list per slice."""
        if self.lowercase:
            text = text.lower()
        self._learn(set(text))
        start = 0
        while start < len(text):
            end = start + SLICE
            if crossing := self._word.match(text, end):
                end = crossing.end()  # a word that crosses the seam belongs to this slice
            yield self._piece.findall(text, start, end)
            start = end

    def _learn(self, characters: set[str]) -> None:
        new = characters - self._seen
        if not new:
            return
        self._seen |= new
        self._letters |= letters_among(new)
        inside = _ranges(self._seen, self._letters)
        self._word = re.compile(f"[{inside}]+")
        self._piece = re.compile(rf"[{inside}]+|\S" if self.punctuation else f"[{inside}]+")


def _ranges(seen: set[str], letters: set[str]) -> str:
    """The inside of a character class that matches the letters and no other character seen so far.

    Ranges extend over unseen characters: few ranges are several times as fast as many.
    """
    parts = []
    for inside, run in groupby(sorted(seen), letters.__contains__):
        if inside:
            first, *_, last = [*run] * 2
            parts.append(f"\\U{ord(first):08x}-\\U{ord(last):08x}")
    return "".join(parts)
