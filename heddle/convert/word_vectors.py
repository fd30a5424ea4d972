"""Files of word vectors in word2vec's and GloVe's formats, read as initial values of a token table (L3-08, L3-09)."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import sha256_of, write_file
from heddle.weights.tensors import read_tensors, save_tensors

Vector = tuple[str, npt.NDArray[np.float32]]
Tell = Callable[[str], None]
Form = Literal["text", "binary", "glove"]
"""The format of a file: word2vec's text or binary form, or GloVe's text, which has no first line with sizes."""
FORMATS = "word2vec's and GloVe's text formats have a word and equally many numbers on each line"
VECTORS = "vectors.safetensors"  # in a run: the initial rows of its token table
LONGEST = 1 << 16  # the most bytes in a word; with more, the file is not a file of vectors
WIDEST = 1 << 16  # the most numbers in a vector, likewise
COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04")  # the first bytes of gzip and zip
PATIENCE, PAUSE = 2.0, 10.0  # seconds before the first line of progress, and between lines


@displayed()
@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary a file of vectors covers.

    Attributes:
        matched: the number of ids with a vector in the file.
        vocabulary: the number of ids.
        unused: the number of words in the file that are not a single token.
    """

    matched: int
    vocabulary: int
    unused: int

    @property
    def share(self) -> float:
        """The fraction of the vocabulary with a vector in the file."""
        return self.matched / self.vocabulary


@dataclass(frozen=True)
class Rows:
    """Rows of a token table from a file, with N ids of width D.

    Attributes:
        ids: Int[N].
        vectors: Float[N, D], fp32.
        coverage: their share of the vocabulary.
    """

    ids: Tensor
    vectors: Tensor
    coverage: Coverage


@checked()
def load_vectors(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> Coverage:
    """Copy a file's vectors into the rows of the token table for the same words. Other rows do not change.

    A word is looked up both as written and with a leading space, which most subword vocabularies keep; both rows get its vector.
    A tied head uses the same table; an untied head does not change.

    Raises:
        HeddleError: the file cannot be read, or its vectors are not as wide as the model's.
    """
    table, width = model.embedding.weight, vector_width(path)
    if width != table.shape[1]:
        raise HeddleError(f"{path}: its vectors have {width} numbers and the model's {table.shape[1]}")
    rows = find_rows(tokenizer, path)
    put_rows(table, rows.ids, rows.vectors)
    return rows.coverage


@torch.no_grad()
def put_rows(table: Tensor, ids: Tensor, vectors: Tensor, first: int = 0) -> None:
    """Copy these rows into a token table, or into its rows from `first` on: Int[N] ids, Float[N, D] vectors."""
    own = (ids >= first) & (ids < first + len(table))
    table[(ids[own] - first).to(table.device)] = vectors[own].to(table)


def find_rows(tokenizer: Tokenizer, path: str | Path, tell: Tell | None = None) -> Rows:
    """The vectors in a file for the ids of a tokenizer. If a word occurs twice, the later vector wins."""
    ids_of_word, vectors_by_id, unused = _single_token_words(tokenizer), dict[int, npt.NDArray[np.float32]](), 0
    for word, vector in read_vectors(path, tell):
        matches = ids_of_word.get(word, [])
        vectors_by_id |= dict.fromkeys(matches, vector)
        unused += not matches
    ids = sorted(vectors_by_id)
    vectors = np.stack([vectors_by_id[id] for id in ids]) if ids else np.empty((0, vector_width(path)), "f4")
    coverage = Coverage(len(vectors_by_id), tokenizer.vocab_size, unused)
    return Rows(torch.tensor(ids, dtype=torch.long), torch.from_numpy(vectors), coverage)


def save_rows(path: Path, rows: Rows) -> str:
    """Write rows as a safetensors file; returns its SHA-256."""
    save_tensors(path, {"ids": rows.ids, "vectors": rows.vectors})
    return sha256_of(path)


def load_rows(path: Path, sha256: str) -> tuple[Tensor, Tensor]:
    """The ids and vectors that `save_rows` wrote.

    Raises:
        HeddleError: the file is missing, or has another checksum.
    """
    if not path.is_file():
        raise HeddleError(f"{path}: missing; without it the run cannot start. Train a new run")
    if sha256_of(path) != sha256:
        raise HeddleError(f"{path}: damaged, it is not the file that this run started from; train a new run")
    tensors = read_tensors(path)
    return tensors["ids"], tensors["vectors"]


def _single_token_words(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ids of each word that is a single token, alone or with a leading space."""
    ids_of_word: dict[str, list[int]] = {}
    for id in range(tokenizer.vocab_size):
        word = tokenizer.decode([id]).strip()
        if word and id in (_single_id(tokenizer, word), _single_id(tokenizer, f" {word}")):
            ids_of_word.setdefault(word, []).append(id)
    return ids_of_word


def _single_id(tokenizer: Tokenizer, text: str) -> int | None:
    """The id of a text that is a single token; None for other texts, or if the tokenizer cannot encode it."""
    try:
        ids = tokenizer.encode(text)
    except HeddleError:
        return None
    return ids[0] if len(ids) == 1 else None


def vector_width(path: str | Path) -> int:
    """The width of the vectors in a file, from its first line.

    Raises:
        HeddleError: the file is missing, compressed, or not a file of vectors.
    """
    return _first_line(Path(path))[1]


def _first_line(path: Path) -> tuple[int, int, int | None]:
    """From the first line: its length if it has sizes (else 0), the width of vectors, and the number of words if known."""
    try:
        with path.open("rb") as file:
            first = file.readline(LONGEST + 32 * WIDEST)
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror or error}") from None
    if first.startswith(COMPRESSED):
        raise HeddleError(f"{path} is compressed; decompress it first (gunzip or unzip)")
    sizes = first.split()
    if len(sizes) == 2 and all(size.isdigit() for size in sizes) and len(first) < 64:
        start, width, words = len(first), int(sizes[1]), int(sizes[0])
    else:
        start, width, words = 0, len(sizes) - 1, None
    if not 0 < width <= WIDEST or (words is None and not all(map(_is_number, sizes[1:]))):
        raise HeddleError(
            f"{path}: not a file of word vectors: {FORMATS}, and its first line is not a word with numbers"
        )
    return start, width, words


def _is_number(word: bytes) -> bool:
    """Whether a word is a number, finite or not."""
    try:
        float(word)
    except ValueError:
        return False
    return True


@checked()
def read_vectors(path: str | Path, tell: Tell | None = None) -> Iterator[Vector]:
    """Words and their vectors, from word2vec's binary or text form (with a first line of two numbers) or GloVe's (without).

    Args:
        tell: called with a line of progress, from two seconds on.

    Raises:
        HeddleError: the file is missing, compressed, empty, truncated, or a line is not a word and numbers.
    """
    path = Path(path)
    start, width, words = _first_line(path)
    if words is not None and _is_binary(path, start, width):
        vectors = _binary(path, start, words, width)
    else:
        vectors = _text(path, width, words)
    return vectors if tell is None else _with_progress(vectors, path, tell)


def _with_progress(vectors: Iterator[Vector], path: Path, tell: Tell) -> Iterator[Vector]:
    due = time.monotonic() + PATIENCE
    for count, vector in enumerate(vectors, 1):
        yield vector
        if count % 256 == 0 and (now := time.monotonic()) > due:
            tell(f"{count:,} words of {path} read")
            due = now + PAUSE


def _is_binary(path: Path, start: int, width: int) -> bool:
    """Whether the file is binary: its second line is not a word with `width` numbers as text."""
    with path.open("rb") as file:
        file.seek(start)
        line = file.readline(LONGEST + 32 * width)
    parts = line.split()
    try:
        [float(part) for part in parts[-width:]]
    except ValueError:
        return True
    return len(parts) <= width


def _text(path: Path, width: int, words: int | None) -> Iterator[Vector]:
    count = 0
    with path.open("rb") as file:
        if words is not None:
            file.readline()
        for number, line in enumerate(file, 1 if words is None else 2):
            parts = line.rstrip(b"\r\n ").split(b" ")
            try:
                # A word may contain spaces (GloVe has a few); the numbers are the last `width` parts.
                word, vector = b" ".join(parts[:-width]).decode(), np.array(parts[-width:], dtype=np.float32)
            except ValueError:
                raise HeddleError(
                    f"{path}, line {number}: must be a word and {pluralize(width, 'number')}, as the lines before; {FORMATS}"
                ) from None
            if not word or vector.shape[0] != width or not np.isfinite(vector).all():
                raise HeddleError(
                    f"{path}, line {number}: must be a word and {pluralize(width, 'finite number')}, as the lines before; {FORMATS}"
                )
            count += 1
            yield word, vector
    if words is not None and count != words:
        raise HeddleError(f"{path}: {count} words, but its first line says {words}: it is truncated or damaged")


def _binary(path: Path, start: int, words: int, width: int) -> Iterator[Vector]:
    with path.open("rb") as file:
        file.seek(start)
        for number in range(words):
            word = bytearray()
            while (byte := file.read(1)) not in (b" ", b""):
                word += byte if byte != b"\n" else b""  # some writers end each vector with a line break
                if len(word) > LONGEST:
                    raise HeddleError(f"{path}, word {number + 1}: the word does not end: the file is damaged")
            raw = file.read(4 * width)
            if len(raw) < 4 * width:
                raise HeddleError(f"{path}: truncated at word {number + 1} of {words}")
            vector = np.frombuffer(raw, dtype="<f4").copy()
            try:
                text = word.decode()
            except UnicodeDecodeError:
                continue  # Google's published file has a few words that are not UTF-8
            if not np.isfinite(vector).all():
                raise HeddleError(f"{path}: the vector of {text!r} is not finite")
            yield text, vector
        if file.read(2).strip(b"\n"):
            raise HeddleError(f"{path}: more than the {words} words that its first line says: it is damaged")


def form_of(path: str | Path, form: Form | None) -> Form:
    """The form to write, by default binary for a `.bin` file and text for other files.

    Raises:
        HeddleError: `form` is text, but the file is a `.bin` file.
    """
    binary = Path(path).suffix == ".bin"
    if binary and form not in (None, "binary"):
        raise HeddleError(f"{path}: form = {form} is text: name a .txt file, or leave form out")
    return form or ("binary" if binary else "text")


@checked()
def write_vectors(
    path: str | Path,
    words: Sequence[str],
    array: npt.NDArray[np.float32],
    form: Form | None = None,
    overwrite: bool = False,
) -> None:
    """Write words and their vectors, Float[V, D], which `read_vectors` reads back exactly.

    Args:
        form: the format, by default binary for a `.bin` file, else word2vec's text.
        overwrite: replace an existing file.

    Raises:
        HeddleError: the file exists or cannot be written, or a word is empty or contains whitespace, which separates words.
    """
    form = form_of(path, form)
    if array.ndim != 2 or len(words) != len(array) or not array.size:
        raise HeddleError(f"array has shape {list(array.shape)}; {len(words):,} words need [{len(words)}, width]")
    if not np.isfinite(array).all():
        raise HeddleError("array has NaN or infinite values; nothing was written")
    wrong = next((word for word in words if not word or word.split() != [word]), None)
    if wrong is not None:
        raise HeddleError(f"words: {wrong!r} is empty or contains whitespace, which these formats cannot store")
    lines = b"".join(_lines(words, np.ascontiguousarray(array, np.float32), form == "binary"))
    sizes = b"" if form == "glove" else f"{len(words)} {array.shape[1]}\n".encode()
    write_file(Path(path), sizes + lines, replace=overwrite)


def _lines(words: Sequence[str], array: npt.NDArray[np.float32], binary: bool) -> Iterator[bytes]:
    numbers = " %.9g" * array.shape[1] + "\n"  # nine digits represent every fp32 number exactly
    for word, row in zip(words, array, strict=True):
        yield word.encode() + (
            b" " + row.astype("<f4").tobytes() + b"\n" if binary else (numbers % tuple(row)).encode()
        )
