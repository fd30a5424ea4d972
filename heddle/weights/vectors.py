"""Word vectors from files, as the first values of a token table: word2vec's text and binary forms, and GloVe's (L3-08, L3-09)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer

Vector = tuple[str, npt.NDArray[np.float32]]
LONGEST = 1 << 16  # bytes of a word: beyond it the file is no file of vectors


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


def take_over_vectors(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> Coverage:
    """Put a file's vectors into the rows of the token table whose token is that word; other rows keep what they have.

    A word is looked up as it stands, and with the space before it that most subword vocabularies keep; both rows get it.

    Raises:
        HeddleError: the file cannot be read, or its vectors have another width than the model's.
    """
    table = model.embedding.weight
    rows: dict[int, npt.NDArray[np.float32]] = {}
    unused = 0
    for word, vector in read_vectors(path):
        if vector.shape[0] != table.shape[1]:
            raise HeddleError(f"{path}: its vectors have {vector.shape[0]} numbers and the model's {table.shape[1]}")
        ids = {encoded[0] for text in (word, f" {word}") if len(encoded := tokenizer.encode(text)) == 1}
        rows |= {number: vector for number in ids if tokenizer.decode([number]).strip() == word}
        unused += not ids
    if rows:
        with torch.no_grad():
            index = torch.tensor(list(rows), device=table.device)
            table[index] = torch.from_numpy(np.stack(list(rows.values()))).to(table)
    return Coverage(len(rows), tokenizer.vocab_size, unused)


def read_vectors(path: str | Path) -> Iterator[Vector]:
    """Words and their vectors: word2vec's binary or text form (with a first line of two numbers), or GloVe's (without).

    Raises:
        HeddleError: the file is missing, empty, truncated, or a line does not hold a word and numbers.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            first = file.readline(LONGEST)
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror or error}") from None
    sizes = first.split()
    if len(sizes) == 2 and all(size.isdigit() for size in sizes):
        words, width = int(sizes[0]), int(sizes[1])
        return (
            _binary(path, len(first), words, width)
            if _is_binary(path, len(first), width)
            else _text(path, width, words)
        )
    if len(sizes) < 2:
        raise HeddleError(f"{path}: this is no file of word vectors: its first line holds no word with numbers")
    return _text(path, len(sizes) - 1, None)


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
