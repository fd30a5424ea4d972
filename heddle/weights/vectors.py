"""Word vectors from files, as the first values of a token table: word2vec's text and binary forms, and GloVe's (L3-08, L3-09)."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import sha256_of
from heddle.weights.tensors import read_tensors, save_tensors

Vector = tuple[str, npt.NDArray[np.float32]]
Tell = Callable[[str], None]
VECTORS = "vectors.safetensors"  # in a run: the rows that its token table began with
LONGEST = 1 << 16  # bytes of a word: beyond it the file is no file of vectors
WIDEST = 1 << 16  # numbers of a vector, likewise
PACKED = (b"\x1f\x8b", b"PK\x03\x04")  # how gzip and zip begin
PATIENCE, PAUSE = 2.0, 10.0  # seconds of reading before something is said, and between two lines


@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary a file of vectors knew.

    Attributes:
        found: ids that got their vector from the file.
        vocabulary: ids there are.
        unused: words of the file that are no single token.
    """

    found: int
    vocabulary: int
    unused: int

    @property
    def share(self) -> float:
        """Of the vocabulary."""
        return self.found / self.vocabulary


@dataclass(frozen=True)
class Rows:
    """Rows of a token table that a file gives, with N ids of width D.

    Attributes:
        ids: Int[N].
        vectors: Float[N, D], fp32.
        coverage: how much of the vocabulary these are.
    """

    ids: Tensor
    vectors: Tensor
    coverage: Coverage


@checked()
def take_over_vectors(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> Coverage:
    """Put a file's vectors into the rows of the token table whose token is that word; other rows keep what they have.

    A word is looked up as it stands, and with the space before it that most subword vocabularies keep; both rows get it.
    A tied head scores with the same table; a head of its own keeps what it has.

    Raises:
        HeddleError: the file cannot be read, or its vectors have another width than the model's.
    """
    table, width = model.embedding.weight, vector_width(path)
    if width != table.shape[1]:
        raise HeddleError(f"{path}: its vectors have {width} numbers and the model's {table.shape[1]}")
    rows = find_rows(tokenizer, path)
    put_rows(model, rows.ids, rows.vectors)
    return rows.coverage


def put_rows(model: Transformer, ids: Tensor, vectors: Tensor) -> None:
    """Make these the rows of a model's token table: Int[N] ids, Float[N, D] vectors."""
    table = model.embedding.weight
    with torch.no_grad():
        table[ids.to(table.device)] = vectors.to(table)


def find_rows(tokenizer: Tokenizer, path: str | Path, tell: Tell | None = None) -> Rows:
    """What a file has for the ids of a tokenizer; of a word that stands there twice the later vector counts.

    Raises:
        HeddleError: as `read_vectors` does.
    """
    known, found, unused = _words(tokenizer), dict[int, npt.NDArray[np.float32]](), 0
    for word, vector in read_vectors(path, tell):
        ids = known.get(word, [])
        found |= dict.fromkeys(ids, vector)
        unused += not ids
    numbers = sorted(found)
    vectors = np.stack([found[number] for number in numbers]) if found else np.empty((0, vector_width(path)), "f4")
    coverage = Coverage(len(found), tokenizer.vocab_size, unused)
    return Rows(torch.tensor(numbers, dtype=torch.long), torch.from_numpy(vectors), coverage)


def save_rows(path: Path, rows: Rows) -> str:
    """Write rows as a safetensors file; returns its SHA-256."""
    save_tensors(path, {"ids": rows.ids, "vectors": rows.vectors})
    return sha256_of(path)


def load_rows(path: Path, sha256: str) -> tuple[Tensor, Tensor]:
    """The ids and vectors that `save_rows` wrote.

    Raises:
        HeddleError: the file is missing, or is not the one that was written.
    """
    if not path.is_file():
        raise HeddleError(f"{path}: missing; without it the run cannot begin. Train a new run")
    if sha256_of(path) != sha256:
        raise HeddleError(f"{path}: damaged, it is not the file that this run began with; train a new run")
    found = read_tensors(path)
    return found["ids"], found["vectors"]


def _words(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Each word that is a single token, by itself or with a space before it, and its ids."""
    found: dict[str, list[int]] = {}
    for number in range(tokenizer.vocab_size):
        word = tokenizer.decode([number]).strip()
        if word and number in (_single(tokenizer, word), _single(tokenizer, f" {word}")):
            found.setdefault(word, []).append(number)
    return found


def _single(tokenizer: Tokenizer, text: str) -> int | None:
    """The one id of a text, None where it takes several or has characters that the tokenizer does not know."""
    try:
        ids = tokenizer.encode(text)
    except HeddleError:
        return None
    return ids[0] if len(ids) == 1 else None


def vector_width(path: str | Path) -> int:
    """How many numbers each vector of a file has, by its first line alone.

    Raises:
        HeddleError: the file is missing, packed, or no file of vectors.
    """
    return _first_line(Path(path))[1]


def _first_line(path: Path) -> tuple[int, int, int | None]:
    """What the first line says: its own length if it is one of sizes, the vectors' width, the number of words if it is told."""
    try:
        with path.open("rb") as file:
            first = file.readline(LONGEST + 32 * WIDEST)
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror or error}") from None
    if first.startswith(PACKED):
        raise HeddleError(f"{path} is packed; unpack it first (gunzip or unzip)")
    sizes = first.split()
    if len(sizes) == 2 and all(size.isdigit() for size in sizes) and len(first) < 64:
        start, width, words = len(first), int(sizes[1]), int(sizes[0])
    else:
        start, width, words = 0, len(sizes) - 1, None
    if not 0 < width <= WIDEST:
        raise HeddleError(f"{path}: this is no file of word vectors: its first line holds no word with numbers")
    return start, width, words


@checked()
def read_vectors(path: str | Path, tell: Tell | None = None) -> Iterator[Vector]:
    """Words and their vectors: word2vec's binary or text form (with a first line of two numbers), or GloVe's (without).

    Args:
        tell: hears how many words there were so far, once reading has taken two seconds.

    Raises:
        HeddleError: the file is missing, packed, empty, truncated, or a line does not hold a word and numbers.
    """
    path = Path(path)
    start, width, words = _first_line(path)
    if words is not None and _is_binary(path, start, width):
        vectors = _binary(path, start, words, width)
    else:
        vectors = _text(path, width, words)
    return vectors if tell is None else _told(vectors, path, tell)


def _told(vectors: Iterator[Vector], path: Path, tell: Tell) -> Iterator[Vector]:
    due = time.monotonic() + PATIENCE
    for count, vector in enumerate(vectors, 1):
        yield vector
        if count % 256 == 0 and (now := time.monotonic()) > due:
            tell(f"{count:,} words of {path} read")
            due = now + PAUSE


def _is_binary(path: Path, start: int, width: int) -> bool:
    """Whether what follows the first line is raw numbers: then it is no UTF-8 line of a word and `width` numbers."""
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
                # A word may hold spaces (GloVe has a few); the numbers are the last `width` parts.
                word, vector = b" ".join(parts[:-width]).decode(), np.array(parts[-width:], dtype=np.float32)
            except ValueError:
                raise HeddleError(f"{path}, line {number}: a word and {width} numbers are needed") from None
            if not word or vector.shape[0] != width or not np.isfinite(vector).all():
                raise HeddleError(f"{path}, line {number}: a word and {width} finite numbers are needed")
            count += 1
            yield word, vector
    if words is not None and count != words:
        raise HeddleError(f"{path}: {count} words where its first line promises {words}: it is cut off or damaged")


def _binary(path: Path, start: int, words: int, width: int) -> Iterator[Vector]:
    with path.open("rb") as file:
        file.seek(start)
        for number in range(words):
            word = bytearray()
            while (byte := file.read(1)) not in (b" ", b""):
                word += byte if byte != b"\n" else b""  # some writers end each vector with a line break
                if len(word) > LONGEST:
                    raise HeddleError(f"{path}, word {number + 1}: no end of the word was found: the file is damaged")
            raw = file.read(4 * width)
            if len(raw) < 4 * width:
                raise HeddleError(f"{path}: cut off at word {number + 1} of {words}")
            vector = np.frombuffer(raw, dtype="<f4").copy()
            try:
                text = word.decode()
            except UnicodeDecodeError:
                continue  # the published file of Google has a few words that are no text
            if not np.isfinite(vector).all():
                raise HeddleError(f"{path}: the vector of {text!r} is not finite")
            yield text, vector
        if file.read(2).strip(b"\n"):
            raise HeddleError(f"{path}: more than the {words} words that its first line promises: it is damaged")
