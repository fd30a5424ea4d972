"""Streaming decoding: text from ids one at a time, never splitting a character, up to a stop text.

`tokenizers.decoders.DecodeStream` drops bytes that are unfinished at the end, holds back whole characters beside broken bytes, and
fails within random ids of a byte fallback ("Invalid prefix encountered"), so heddle has its own.
"""

import codecs
from collections.abc import Sequence

from heddle.checks import checked, wrong
from heddle.text.tokenizer import Tokenizer


class TextStream:
    """Decodes a growing sequence of ids, holding back the bytes of an unfinished character and what may begin a stop text.

    The results of `push`, then `flush`, joined, are exactly `tokenizer.decode(ids)`, even if the bytes are not UTF-8, up to the
    first stop text.

    Args:
        previous: the id before the sequence, if it continues a text: words have a space between them.
        stop: texts that end the stream, wherever they begin or end inside a token; none of them empty.

    Attributes:
        stopped: whether a stop text has come. Nothing is to be pushed after it.
    """

    @checked()
    def __init__(self, tokenizer: Tokenizer, previous: int | None = None, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise wrong("TextStream", "stop", stop, "texts that are not empty")
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, stop
        self._previous = previous
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""  # may be the start of a stop text

    def push(self, id: int) -> str:
        """The text that this id makes certain; empty while a character, or what may be a stop text, is unfinished."""
        added = self._tokenizer.after(self._previous, id)
        self._previous = id
        return self._certain(self._decoder.decode(added))

    def flush(self) -> str:
        """The text still held back, with U+FFFD for the bytes of an unfinished character; resets the stream."""
        self._previous = None
        text = self._certain(self._decoder.decode(b"", final=True)) + self._pending
        self._pending = ""
        return text

    def _certain(self, new: str) -> str:
        """Add new text, and take what cannot be part of a stop text: all before the first one, if one is complete."""
        if not self._stop:
            return new
        text = self._pending + new
        # Of several stop texts the one that ends first counts, so that token boundaries do not matter.
        matches = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped, self._pending = True, ""
            return text[: min(matches)[1]]
        certain = len(text) - self._partial_stop(text)
        self._pending = text[certain:]
        return text[:certain]

    def _partial_stop(self, text: str) -> int:
        """Number of characters at the end that may be the start of a stop text."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        lengths = range(longest, 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
