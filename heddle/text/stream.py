"""Streaming decoding: text from ids one at a time, never splitting a character."""

import codecs

from heddle.checks import checked
from heddle.text.tokenizer import Tokenizer


class TextStream:
    """Decodes a growing sequence of ids, holding back the bytes of an unfinished character.

    The results of `push`, then `flush`, joined, are exactly `tokenizer.decode(ids)`, even if the bytes are not UTF-8.

    Args:
        previous: the id before the sequence, if it continues a text: words have a space between them.
    """

    @checked()
    def __init__(self, tokenizer: Tokenizer, previous: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._previous = previous
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The text that this id completes; empty while a character is unfinished."""
        added = self._tokenizer.after(self._previous, id)
        self._previous = id
        return self._decoder.decode(added)

    def flush(self) -> str:
        """The bytes still held back, as U+FFFD; resets the stream."""
        self._previous = None
        return self._decoder.decode(b"", final=True)
