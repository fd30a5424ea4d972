"""Writing the token files of a store, and cutting huge texts into pieces for the tokenizer."""

import hashlib
import itertools
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from heddle.data.split import PartText
from heddle.errors import HeddleError
from heddle.text.processes import Encodes

_PIECE = 1 << 20
_SEAM = 1 << 12
TOKENS, DOCUMENTS = ".tokens", ".documents"
TABLE = np.dtype("<i8")


@runtime_checkable
class Tokenizes(Encodes, Protocol):
    """The tokenizer methods that a store needs."""

    @property
    def end_of_text(self) -> int | None: ...
    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]: ...
    def fingerprint(self) -> str: ...


class PartWriter:
    """Appends one part's ids to its file `NAME.tokens`, and writes `NAME.documents` at the end.

    The second file has two numbers for each document, Int64[documents 2]: where its ids start, and the UTF-8 bytes that its targets
    cover, which are those of its text without its first token.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], vocab_size: int, separator: int | None) -> None:
        self.path, self.dtype, self.vocab_size, self.separator = path, dtype, vocab_size, separator
        self.tokens = self.bytes = self.characters = self.first_token_bytes = 0
        self._digest = hashlib.sha256()
        self._starts, self._covered, self._texts = array("q"), array("q"), array("Q")
        self._opens = False  # whether the next ids are a document's first

    @property
    def documents(self) -> int:
        """Number of documents, or starts or ends of cut documents, begun so far."""
        return len(self._starts)

    def __enter__(self) -> "PartWriter":
        self._stream = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            settle(self._stream)
        if error is None:
            with self.path.with_suffix(DOCUMENTS).open("wb") as stream:
                stream.write(self._table())
                settle(stream)

    def begin(self, text: PartText) -> None:
        if self.documents and self.separator is not None:
            self._write([self.separator])
        self._starts.append(self.tokens)
        self._covered.append(text.size)
        digest = hashlib.blake2b(text.text.encode(), digest_size=8).digest()
        self._texts.append(int.from_bytes(digest, "big"))
        self.bytes += text.size
        self.characters += len(text.text)
        self._opens = True

    def append(self, ids: Sequence[int], text: str, tokenizer: Tokenizes) -> None:
        """Write the ids of a text, which is a document or a piece of one."""
        begins = not self.tokens
        self._write(ids)
        if self._opens and len(ids):
            first = first_bytes(tokenizer.token_bytes(int(ids[0])), text)
            self._covered[-1] -= first
            self.first_token_bytes = first if begins else self.first_token_bytes
            self._opens = False

    def texts(self) -> npt.NDArray[np.uint64]:
        """UInt64[documents], a hash of each document's text."""
        return np.frombuffer(self._texts, dtype=np.uint64)

    def _table(self) -> bytes:
        columns = [np.frombuffer(column, dtype=np.int64) for column in (self._starts, self._covered)]
        return np.stack(columns, axis=1).astype(TABLE).tobytes()

    def _write(self, ids: Sequence[int]) -> None:
        values = np.asarray(ids, dtype=np.int64)
        check_ids(values, self.vocab_size)
        # Not ndarray.tofile: on a full disk it raises an error without errno.
        data = values.astype(self.dtype).data
        self._stream.write(data)
        self._digest.update(data)
        self.tokens += values.size

    def summary(self) -> dict[str, int | str]:
        """The part's entry in ``meta.json``.

        Raises:
            HeddleError: the part has no target.
        """
        name = self.path.stem
        if self.tokens < 2:
            raise HeddleError(
                f"the {name} part would have {self.tokens} token(s), but needs at least 2: give more text or set another "
                "share, validation="
            )
        return {
            "tokens": self.tokens,
            "bytes": self.bytes,
            "characters": self.characters,
            "documents": self.documents,
            "first_token_bytes": self.first_token_bytes,
        }

    def files(self) -> dict[str, str]:
        """SHA-256 of both files, by name."""
        return {
            self.path.name: self._digest.hexdigest(),
            self.path.with_suffix(DOCUMENTS).name: hashlib.sha256(self._table()).hexdigest(),
        }


def check_ids(values: npt.NDArray[np.int64], vocab_size: int) -> None:
    """Refuse ids outside of the vocabulary."""
    if values.size and not 0 <= values.min() <= values.max() < vocab_size:
        invalid = int(values[(values < 0) | (values >= vocab_size)][0])
        raise HeddleError(f"the tokenizer returned id {invalid}, which is out of range (vocab size {vocab_size})")


def first_bytes(spelt: bytes, text: str) -> int:
    """UTF-8 bytes of ``text`` that its first token covers; 0 if the token's bytes differ, as for an unknown word.

    Args:
        spelt: the token's bytes; some tokenizers start every word with a space.
    """
    head = text[: len(spelt)].encode()
    return next((len(form) for form in (spelt, spelt.lstrip(b" ")) if head.startswith(form)), 0)


def settle(stream: IO[bytes]) -> None:
    """Flush a stream to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def check_size(path: Path, number: int, each: int, what: str) -> None:
    """Refuse a file whose size differs from ``meta.json``."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}; build the token store again") from error
    if size != number * each or not size:
        expected = f"{number} {what} of {each} bytes"
        raise HeddleError(f"{path}: {size} bytes, but meta.json says {expected}; build the store again")


def map_documents(path: Path, documents: int, tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Int64[documents + 1], where the documents start, then the end; and Int64[documents], the bytes that their targets cover."""
    table = np.fromfile(path, dtype=TABLE, count=2 * documents).reshape(documents, 2).astype(np.int64)
    return np.append(table[:, 0], tokens), table[:, 1].copy()


def map_tokens(path: Path, dtype: np.dtype[Any], tokens: int) -> np.memmap[Any, np.dtype[Any]]:
    """Int[N], a file of ids, mapped read-only."""
    return np.memmap(path, dtype=dtype, mode="r", shape=(tokens,))


def pieces(text: str, tokenizer: Tokenizes) -> Iterator[str]:
    """Cut a huge text after lines where the cut changes no id. A small text, or one without such a place, is one piece."""
    start = 0
    for goal in range(_PIECE, len(text) - _SEAM, _PIECE):
        # Skip places next to whitespace: pre-tokenizers look ahead in runs of it.
        candidates = re.compile(r"(?<=\S)\n(?=\S)").finditer(text, goal, goal + _PIECE)
        cuts = (match.end() for match in itertools.islice(candidates, 8))
        cut = next((cut for cut in cuts if cut - start >= _SEAM and _is_seam(text, cut, tokenizer)), None)
        if cut is not None:
            yield text[start:cut]
            start = cut
    yield text[start:]


def _is_seam(text: str, cut: int, tokenizer: Tokenizes) -> bool:
    """Whether cutting the text at ``cut`` leaves the tokens around it unchanged.

    It is enough to compare the neighbourhood: BPE ids are right exactly if each pair of neighbours is, and pre-tokenizers read
    forward from one boundary to the next.
    """
    before, after = text[cut - _SEAM : cut], text[cut : cut + _SEAM]
    joined, left, right = tokenizer.encode_batch([before + after, before, after])
    return joined == left + right
