"""The memory-mapped token store: a text is tokenised once, and training reads slices without loading the whole."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.checks import checked
from heddle.data.parts import (
    DOCUMENTS,
    TABLE,
    TOKENS,
    PartWriter,
    Tokenizes,
    check_size,
    map_documents,
    map_tokens,
    pieces,
    settle,
)
from heddle.data.records import Records
from heddle.data.sources import Description, Document, Tally, describe_documents
from heddle.data.split import PartText, Split, choose_split
from heddle.errors import HeddleError

FORMAT, VERSION, META = "heddle token store", 2, "meta.json"
META_PARTIAL = f"{META}.partial"
PARTS = ("train", "validation")
Progress = Callable[[int, int], None]

# Characters to tokenise at once; at some 40 bytes per id, this bounds the memory.
_BATCH = 1 << 21


@dataclass(frozen=True, slots=True)
class Part:
    """The training or the validation part of a corpus.

    Attributes:
        tokens: Int[N], the ids; a store's are mapped from the disk, read-only. Documents are in the order of the sources,
            separated by the end-of-text id if the store was built with it.
        bytes: UTF-8 bytes of the part's text.
        documents: number of documents, or starts or ends of documents, in the part.
        first_token_bytes: UTF-8 bytes of the first token, which is never a target.
        starts: Int64[documents + 1], where each document starts in `tokens`, and the end; a separator belongs to the document
            before it. Defaults to one document.
        target_sizes: Int64[documents], UTF-8 bytes of each document's text without its first token.
        separator: the id after each document but the last, or None.
        sha256: SHA-256 of the file of ids, and of the file of documents; None: not from a store.
    """

    tokens: npt.NDArray[Any]
    bytes: int
    documents: int
    first_token_bytes: int
    starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    target_sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    separator: int | None = None
    sha256: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if not len(self.starts):
            object.__setattr__(self, "starts", np.array([0, len(self.tokens)]))
            object.__setattr__(self, "target_sizes", np.array([self.target_bytes]))

    @property
    def targets(self) -> int:
        """How many tokens are predicted: all but the first."""
        return len(self.tokens) - 1

    @property
    def target_bytes(self) -> int:
        """UTF-8 bytes of the text that the targets cover. This is the text's size, not a sum over tokens: separators add
        nothing, and blanks that belong to no token count."""
        return self.bytes - self.first_token_bytes


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a task reads: one part to train on and one to score, either of which may be None."""

    train: Part | Records | None = None
    validation: Part | Records | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of its records, if it has any."""
        return next((part.classes for part in (self.train, self.validation) if isinstance(part, Records)), ())


@dataclass(frozen=True, slots=True)
class TokenStore:
    """A directory of token ids in two parts.

    Attributes:
        vocab_size: V, of the tokenizer that wrote the store.
        tokenizer: that tokenizer's fingerprint.
        sources: SHA-256 of the documents, as `heddle.data.describe` computes it.
        bytes: UTF-8 bytes of the documents.
        separator: the id between documents, or None.
        split: what was held out: `by` (see `heddle.data.split.Split`), `validation`, the share of bytes asked for,
            `held_out`, the actual share, `cut`, how many documents were cut in two, and `overlap`, how many texts of the
            validation part are texts of the training part too, where the two parts of a document count as two.
    """

    directory: Path
    vocab_size: int
    tokenizer: str
    sources: str
    bytes: int
    separator: int | None
    split: dict[str, Any]
    train: Part
    validation: Part

    @property
    def corpus(self) -> Corpus:
        """Both parts, as a task reads them."""
        return Corpus(self.train, self.validation)

    def tokens(self, part: str) -> int:
        """How many tokens a part has."""
        found: Part = getattr(self, part)
        return len(found.tokens)

    @classmethod
    @checked()
    def open(cls, directory: str | Path) -> "TokenStore":
        """Open an existing store, mapping its files.

        Raises:
            HeddleError: there is no store, it has another format or version, or a file does not have the size in
                ``meta.json``.
        """
        directory = Path(directory)
        meta = _token_meta(directory)
        try:
            dtype = id_dtype(meta["vocab_size"])
            if meta["dtype"] != dtype.name:
                raise HeddleError(
                    f"{directory / META}: dtype {meta['dtype']!r} does not match the vocabulary; build the store again"
                )
            train, validation = (
                _map_part(directory / f"{name}{TOKENS}", meta[name], dtype, meta["separator"]) for name in PARTS
            )
            return cls(
                directory=directory,
                vocab_size=meta["vocab_size"],
                tokenizer=meta["tokenizer"],
                sources=meta["sources"]["sha256"],
                bytes=meta["sources"]["bytes"],
                separator=meta["separator"],
                split=dict(meta["split"]),
                train=train,
                validation=validation,
            )
        except (KeyError, TypeError) as error:
            raise HeddleError(
                f"{directory / META}: damaged ({type(error).__name__}: {error}); build the store again"
            ) from error

    def verify(self, *parts: str) -> None:
        """Compare the files (of these parts, or of both) with their hashes in ``meta.json``.

        Raises:
            HeddleError: a file has changed.
        """
        for name in parts or PARTS:
            part: Part = getattr(self, name)
            for kind, promised in zip((TOKENS, DOCUMENTS), part.sha256 or (), strict=True):
                file = self.directory / f"{name}{kind}"
                with file.open("rb") as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
                if found != promised:
                    raise HeddleError(f"{file}: damaged, not what was written; restore the file or train a new run")


@checked()
def build_store(
    directory: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizes,
    validation: float | None,
    end_of_text: bool,
    progress: Progress | None = None,
    described: Description | None = None,
) -> TokenStore:
    """Tokenise ``documents`` into a new store at ``directory``.

    ``meta.json`` is written last, so what a killed build leaves never opens as a store, and the next build overwrites it.

    A single document is split by characters: the first ``int(n * (1 - validation))`` are for training, the rest for
    validation. Each of many documents goes whole to one part, by a hash of its content, so it stays there when documents are
    added. If a few documents make up most of the text, large ones are cut after a line, a sentence or a blank
    (`heddle.data.split`). With ``end_of_text``, the tokenizer's end-of-text id separates the documents of a part.

    Args:
        validation: the share of the text to hold out; None: every document says its part.
        progress: called as ``progress(done, total)`` with the UTF-8 bytes tokenised so far and in all.
        described: the result of `describe` for the same documents and share. With it, memory does not grow with the corpus;
            without it, all documents are held in memory.

    Raises:
        HeddleError: there is no text; a part has fewer than two tokens; the share is outside (0, 1); there are several
            documents to separate and the tokenizer has no end-of-text id, or returns an id outside its vocabulary; the text
            is not the one described; the store already exists; or the disk is full.
    """
    if validation is not None and not 0 < validation < 1:
        raise HeddleError(f"validation must be between 0 and 1, both excluded, not {validation}")
    directory = Path(directory)
    if (directory / META).exists():
        raise HeddleError(f"{directory}: a token store already exists here; delete it or choose another directory")
    if described is None:
        documents = list(documents)
        described = describe_documents(documents, Tally(validation))
    if not described.bytes:
        raise HeddleError("no text to build a token store from: every document is empty")
    if end_of_text and described.documents > 1 and tokenizer.end_of_text is None:
        raise HeddleError("the tokenizer has no end-of-text token to put between documents; build without end_of_text")
    split = choose_split(described, validation)
    tally, vocab_size = Tally(validation), tokenizer.vocab_size
    separator = tokenizer.end_of_text if end_of_text else None
    with cleared_on_error(directory):
        writers = {
            name: PartWriter(directory / f"{name}{TOKENS}", id_dtype(vocab_size), vocab_size, separator)
            for name in PARTS
        }
        with writers["train"], writers["validation"]:
            _encode(_divided(documents, split, tally), tokenizer, writers, progress, described.bytes)
        if tally.description() != described:
            raise HeddleError("the text has changed since it was first read; run the command again")
        written = {name: writer.summary() for name, writer in writers.items()}
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": id_dtype(vocab_size).name,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer.fingerprint(),
            "sources": {name: getattr(described, name) for name in ("documents", "bytes", "sha256")},
            "split": {
                "by": split.by,
                "validation": validation,
                "held_out": writers["validation"].bytes / described.bytes,
                "cut": sum(writer.documents for writer in writers.values()) - described.documents,
                "overlap": int(np.isin(writers["validation"].texts(), writers["train"].texts()).sum()),
            },
            "separator": separator,
            **written,
        }
        write_meta(directory / META, meta)
    return TokenStore.open(directory)


@contextmanager
def cleared_on_error(directory: Path, what: str = "token store") -> Iterator[None]:
    """Make `directory`; on an error remove what was made of the store and report the system's error."""
    there = directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for file in [directory / META_PARTIAL, *(file for part in PARTS for file in directory.glob(f"{part}.*"))]:
            with suppress(OSError):
                file.unlink()
        if not there:
            with suppress(OSError):
                directory.rmdir()
        if isinstance(error, OSError):
            raise HeddleError(f"cannot write the {what} {directory}: {error.strerror or error}") from error
        raise


def write_meta(path: Path, meta: dict[str, Any]) -> None:
    """Write a store's `meta.json`, completely or not at all."""
    partial = path.with_name(META_PARTIAL)
    with partial.open("wb") as stream:
        stream.write((json.dumps(meta, indent=2) + "\n").encode())
        settle(stream)
    partial.rename(path)


def _divided(documents: Iterable[Document], split: Split, tally: Tally) -> Iterator[PartText]:
    for document in documents:
        if document.text:
            data = document.text.encode()
            digest = tally.add(data)
            if split.by != "sources":
                yield from split.divide(document.text, len(data), digest)
            elif document.part in PARTS:
                yield PartText(document.part, document.text, len(data))
            else:
                raise HeddleError(f"{document.origin}: part = {document.part!r} must be train or validation")


def _encode(
    texts: Iterable[PartText],
    tokenizer: Tokenizes,
    writers: dict[str, PartWriter],
    progress: Progress | None,
    total: int,
) -> None:
    """Tokenise in batches of bounded size and append to the parts, in order."""
    done = 0
    # None marks a further piece of the previous document.
    batch: list[tuple[PartWriter, PartText | None, str]] = []

    def flush() -> None:
        encoded = tokenizer.encode_batch([piece for *_, piece in batch])
        for (writer, begins, piece), ids in zip(batch, encoded, strict=True):
            if begins:
                writer.begin(begins)
            writer.append(ids, piece, tokenizer)
        batch.clear()
        if progress:
            progress(done, total)

    held = 0
    for text in texts:
        begins: PartText | None = text
        for piece in pieces(text.text, tokenizer):
            batch.append((writers[text.part], begins, piece))
            begins = None
            done += len(piece.encode())
            held += len(piece)
            if held >= _BATCH or len(batch) >= 4096:
                flush()
                held = 0
    if batch:
        flush()


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def read_meta(directory: Path) -> dict[str, Any]:
    """The `meta.json` of a store, of texts or of records."""
    path = directory / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"{directory}: not a token store ({META}: {error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise HeddleError(f"{path}: damaged, not JSON; build the store again") from error
    if not isinstance(meta, dict):
        raise HeddleError(f"{path}: not the description of a heddle token store")
    return meta


def _token_meta(directory: Path) -> dict[str, Any]:
    path, meta = directory / META, read_meta(directory)
    if meta.get("format") != FORMAT:
        raise HeddleError(f"{path}: not the description of a heddle token store")
    if meta.get("version") != VERSION:
        raise HeddleError(
            f"{path}: format version {meta.get('version')}, but this heddle reads version {VERSION}; build the store again"
        )
    return meta


def _map_part(path: Path, meta: dict[str, Any], dtype: np.dtype[Any], separator: int | None) -> Part:
    table, numbers = path.with_suffix(DOCUMENTS), (meta["bytes"], meta["documents"], meta["first_token_bytes"])
    check_size(path, meta["tokens"], dtype.itemsize, "tokens")
    check_size(table, meta["documents"], 2 * TABLE.itemsize, "documents")
    starts, covered = map_documents(table, meta["documents"], meta["tokens"])
    tokens = map_tokens(path, dtype, meta["tokens"])
    return Part(tokens, *numbers, starts, covered, separator, (meta["sha256"], meta["documents_sha256"]))
