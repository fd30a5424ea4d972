"""Words of a text where the `words` tokenizer cuts it, at the speed of Python's regular expressions."""

import re
from collections.abc import Iterator
from itertools import groupby

from heddle.text.words import letters_among

SLICE = 1 << 20  # characters cut at a time, so that a huge text never becomes a list of all its words


class WordSplitter:
    """Cuts texts into the pieces of the `words` tokenizer that are not blank: words and, unless left out, punctuation.

    The tokenizer's own library decides which characters are parts of words; it is asked once for each character.

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
        """The pieces of one text, a list for each slice of it."""
        if self.lowercase:
            text = text.lower()
        self._learn(set(text))
        start = 0
        while start < len(text):
            end = start + SLICE
            if rest := self._word.match(text, end):
                end = rest.end()  # a word that crosses the seam belongs to this slice
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
    """The inside of a character class that has the letters, and of the characters seen no other.

    Ranges reach over characters that were not seen: few ranges are several times as fast as many.
    """
    parts = []
    for inside, run in groupby(sorted(seen), letters.__contains__):
        if inside:
            first, *_, last = [*run] * 2
            parts.append(f"\\U{ord(first):08x}-\\U{ord(last):08x}")
    return "".join(parts)
