"""Writing the parts of a token store: ids to a file, and huge texts to the tokenizer in pieces."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np

from heddle.errors import HeddleError

_PIECE = 1 << 20
_SEAM = 1 << 12


@runtime_checkable
class Tokenizes(Protocol):
    """What the store asks of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_of_text(self) -> int | None: ...
    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]: ...
    def token_bytes(self, id: int, /) -> bytes: ...
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PartText:
    """A text on its way to a part; ``rank`` is the content's hash as 64 bits, ``size`` its UTF-8 bytes."""

    part: str
    text: str
    rank: int
    size: int


@dataclass(slots=True)
class _Span:
    """Where a document lies in its part, in tokens."""

    rank: int
    start: int
    stop: int
    size: int


class PartWriter:
    """Appends one part's ids to its file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], vocab_size: int, separator: int | None) -> None:
        self.path, self.dtype, self.vocab_size, self.separator = path, dtype, vocab_size, separator
        self.tokens = self.bytes = self.documents = 0
        # The documents of lowest and highest rank: the ones that move if the other part stays empty.
        self.lowest: _Span | None = None
        self.highest: _Span | None = None

    def __enter__(self) -> "PartWriter":
        self._stream = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            settle(self._stream)

    def begin(self, text: PartText) -> None:
        if self.documents and self.separator is not None:
            self._write([self.separator])
        self.documents += 1
        self.bytes += text.size
        self._current = _Span(text.rank, self.tokens, self.tokens, text.size)
        if self.lowest is None or text.rank < self.lowest.rank:
            self.lowest = self._current
        if self.highest is None or text.rank > self.highest.rank:
            self.highest = self._current

    def append(self, ids: Sequence[int]) -> None:
        self._write(ids)
        self._current.stop = self.tokens

    def _write(self, ids: Sequence[int]) -> None:
        values = np.asarray(ids, dtype=np.int64)
        if values.size and not 0 <= values.min() <= values.max() < self.vocab_size:
            wrong = int(values[(values < 0) | (values >= self.vocab_size)][0])
            raise HeddleError(
                f"the tokenizer gave the id {wrong}, which its vocabulary of {self.vocab_size} does not have"
            )
        # Not ndarray.tofile: on a full disk it raises an error without the system's number.
        self._stream.write(values.astype(self.dtype).data)
        self.tokens += values.size

    def summary(self, tokenizer: Tokenizes) -> dict[str, int]:
        """The part's entry in ``meta.json``; refuses a part without a single target."""
        name = self.path.stem
        if self.tokens < 2:
            raise HeddleError(
                f"the {name} part would have {self.tokens} token(s) and needs at least 2: give more text or another "
                "validation_fraction"
            )
        first = len(tokenizer.token_bytes(int(np.fromfile(self.path, self.dtype, count=1)[0])))
        return {"tokens": self.tokens, "bytes": self.bytes, "documents": self.documents, "first_token_bytes": first}


def settle(stream: IO[bytes]) -> None:
    """Bring what was written to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def map_tokens(path: Path, dtype: np.dtype[Any], tokens: int) -> np.memmap[Any, np.dtype[Any]]:
    """Int[N], a file of ids mapped read-only."""
    return np.memmap(path, dtype=dtype, mode="r", shape=(tokens,))


def fill_empty(train: PartWriter, validation: PartWriter) -> None:
    """When all documents hashed to one side, move the one nearest to the other side over."""
    if (train.documents and validation.documents) or not train.tokens + validation.tokens:
        return
    full, empty = (train, validation) if train.documents else (validation, train)
    span = train.lowest if train.documents else validation.highest
    assert span is not None
    tokens = map_tokens(full.path, full.dtype, full.tokens)
    gap = 0 if full.separator is None else 1
    start, stop = (span.start - gap, span.stop) if span.start else (0, span.stop + gap)
    shorter = full.path.with_suffix(".tokens.partial")
    with empty.path.open("wb") as moved, shorter.open("wb") as kept:
        moved.write(tokens[span.start : span.stop].data)
        kept.write(tokens[:start].data)
        kept.write(tokens[stop:].data)
        settle(moved)
        settle(kept)
    os.replace(shorter, full.path)
    empty.tokens, empty.bytes, empty.documents = span.stop - span.start, span.size, 1
    full.tokens, full.bytes, full.documents = full.tokens - (stop - start), full.bytes - span.size, full.documents - 1


def pieces(text: str, tokenizer: Tokenizes) -> Iterator[str]:
    """Cut a huge text after lines where the cut changes no id; a text that fits, or has no such place, stays whole."""
    start = 0
    for goal in range(_PIECE, len(text) - _SEAM, _PIECE):
        # White space on either side is passed over: runs of it are what pre-tokenizers look ahead in.
        candidates = re.compile(r"(?<=\S)\n(?=\S)").finditer(text, goal, goal + _PIECE)
        cuts = (found.end() for found in itertools.islice(candidates, 8))
        cut = next((cut for cut in cuts if cut - start >= _SEAM and _is_seam(text, cut, tokenizer)), None)
        if cut is not None:
            yield text[start:cut]
            start = cut
    yield text[start:]


def _is_seam(text: str, cut: int, tokenizer: Tokenizes) -> bool:
    """Whether the tokens around ``cut`` come out the same when the text is cut there.

    Looking at the neighbourhood is enough: BPE ids are right exactly if each pair of neighbours is, and pre-tokenizers
    read forward from one boundary to the next.
    """
    before, after = text[cut - _SEAM : cut], text[cut : cut + _SEAM]
    whole, left, right = tokenizer.encode_batch([before + after, before, after])
    return whole == left + right
