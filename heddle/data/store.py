"""The memory-mapped token store: a text is tokenised once, and training reads slices without loading all of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from heddle.checks import between, checked
from heddle.config.data import MOST_WORKERS
from heddle.data.base import META, PARTS, BaseStore, check_new, cleared_on_error, write_meta
from heddle.data.corpus import Part
from heddle.data.provenance import Provenance
from heddle.data.records import Rows
from heddle.data.sources.documents import Description, Document, TextStats, describe_documents
from heddle.data.split import PartText, Split, choose_split
from heddle.data.token_writer import (
    DOCUMENTS,
    TABLE,
    TOKENS,
    PartWriter,
    Tokenizes,
    check_size,
    map_documents,
    map_tokens,
    pieces,
)
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.text.processes import Encodes, InOrder, in_order, suitable_workers

Progress = Callable[[int, int], None]

IDS = "ids"  # the field of a text's ids

# Characters to tokenise at once; at some 40 bytes per id, this bounds the memory.
_BATCH = 1 << 21


@displayed()
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStore(BaseStore):
    """A directory of token ids in two parts.

    Attributes:
        sources: SHA-256 of the documents, as `heddle.data.describe` computes it.
        bytes: UTF-8 bytes of the documents.
        separator: the id between documents, or None.
        split: what was held out: `by` (see `heddle.data.split.Split`), `validation`, the requested share of bytes,
            `held_out`, the actual share, `cut`, how many documents were cut in two, and `overlap`, how many texts of the
            validation part are also in the training part; a document that was cut counts as two texts.
    """

    FORMAT: ClassVar[str] = "heddle token store"
    VERSION: ClassVar[int] = 4
    WHAT: ClassVar[str] = "token store"

    bytes: int
    separator: int | None
    train: Part
    validation: Part

    def tokens(self, part: str) -> int:
        """Tokens of a part."""
        text: Part = getattr(self, part)
        return len(text.tokens)

    @classmethod
    def _names(cls, meta: Mapping[str, Any]) -> list[str]:
        return [f"{part}{kind}" for part in PARTS for kind in (TOKENS, DOCUMENTS)]

    @classmethod
    def _content(cls, directory: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        dtype = id_dtype(meta["vocab_size"])
        if meta["dtype"] != dtype.name:
            raise HeddleError(
                f"{directory / META}: dtype {meta['dtype']!r} does not match the vocabulary; build the store again"
            )
        parts = {name: _map_part(directory / f"{name}{TOKENS}", meta[name], dtype, meta["separator"]) for name in PARTS}
        if meta["split"]["by"] == "characters":  # one text, cut in two
            parts = {
                "train": replace(parts["train"], ends=False),
                "validation": replace(parts["validation"], begins=False),
            }
        return {"bytes": meta["sources"]["bytes"], "separator": meta["separator"], **parts}


@checked(workers=between(0, MOST_WORKERS))
def build_store(
    directory: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizes,
    validation: float | None,
    end_of_text: bool,
    progress: Progress | None = None,
    described: Description | None = None,
    workers: int | None = None,
    provenance: Provenance | None = None,
    left_out: Mapping[str, int] | None = None,
    encoded: InOrder = in_order,
) -> TokenStore:
    """Tokenise ``documents`` into a new store at ``directory``.

    ``meta.json`` is written last, so the files of a killed build never open as a store, and the next build overwrites them.

    A single document is split by characters: the first ``int(n * (1 - validation))`` are for training, the rest for
    validation. With many documents, a hash of its content assigns each one to a part, so it stays there when documents are
    added. If a few documents make up most of the text, large ones are cut after a line, a sentence or whitespace
    (`heddle.data.split`). With ``end_of_text``, the tokenizer's end-of-text id separates the documents of a part.

    Args:
        validation: the share of the text to hold out; None: every document has its `part`.
        progress: called as ``progress(done, total)`` with the UTF-8 bytes tokenised so far and in all.
        described: the result of `describe` for the same documents and share. With it, memory does not grow with the corpus;
            without it, all documents are held in memory.
        workers: processes that tokenise; 0 or 1: this one alone; None: as many as make it faster. The result is the same.
        provenance: the files and settings that the documents come from, to compare with those of another run.
        left_out: how many malformed items were left out, by kind of fault.
        encoded: what encodes the jobs, in order.

    Raises:
        HeddleError: there is no text; a part has fewer than two tokens; the share is outside (0, 1); there are several
            documents to separate and the tokenizer has no end-of-text id, or returns an id outside its vocabulary; the text
            differs from ``described``; the store already exists; or the disk is full.
    """
    directory = Path(directory)
    check_new(directory, validation)
    if described is None:
        documents = list(documents)
        described = describe_documents(documents, TextStats(validation))
    if not described.bytes:
        raise HeddleError("no text to build a token store from: every document is empty")
    if end_of_text and described.documents > 1 and tokenizer.end_of_text is None:
        raise HeddleError("the tokenizer has no end-of-text token to put between documents; build without end_of_text")
    split, stats, vocab_size = choose_split(described, validation), TextStats(validation), tokenizer.vocab_size
    separator = tokenizer.end_of_text if end_of_text else None
    with cleared_on_error(directory, TokenStore.WHAT):
        writers = {
            name: PartWriter(directory / f"{name}{TOKENS}", id_dtype(vocab_size), vocab_size, separator)
            for name in PARTS
        }
        with writers["train"], writers["validation"]:
            count = suitable_workers(tokenizer, described.bytes) if workers is None else workers
            jobs = text_jobs(documents, tokenizer, split, stats)
            with closing(encoded(encode_texts, jobs, tokenizer, count)) as results:
                _write(results, tokenizer, writers, progress, described.bytes)
        if stats.description() != described:
            raise HeddleError("the text has changed since it was first read; run the command again")
        sizes = {name: writer.summary() for name, writer in writers.items()}
        meta = {
            **TokenStore.heading(tokenizer, provenance, (writer.files() for writer in writers.values()), left_out),
            "dtype": id_dtype(vocab_size).name,
            "sources": {name: getattr(described, name) for name in ("documents", "bytes", "sha256")},
            "split": {
                "by": split.by,
                "validation": validation,
                "held_out": writers["validation"].bytes / described.bytes,
                "cut": sum(writer.documents for writer in writers.values()) - described.documents,
                "overlap": int(np.isin(writers["validation"].texts(), writers["train"].texts()).sum()),
            },
            "separator": separator,
            **sizes,
        }
        write_meta(directory / META, meta)
    return TokenStore.open(directory)


def _divided(documents: Iterable[Document], split: Split, stats: TextStats) -> Iterator[PartText]:
    for document in documents:
        if document.text:
            data = document.text.encode()
            digest = stats.add(data)
            if split.by != "sources":
                yield from split.divide(document.text, len(data), digest)
            elif document.part in PARTS:
                yield PartText(document.part, document.text, len(data))
            else:
                raise HeddleError(f"{document.origin}: part = {document.part!r} must be train or validation")


class TextBatch(NamedTuple):
    """Texts to tokenise at once: the part of each, the document that it begins (None: a later piece of one), the text, and the
    UTF-8 bytes of all texts so far."""

    parts: list[str]
    begins: list[PartText | None]
    pieces: list[str]
    done: int


def text_jobs(
    documents: Iterable[Document], tokenizer: Tokenizes, split: Split, stats: TextStats
) -> Iterator[TextBatch]:
    """Divide documents and group their texts into batches of bounded size, with huge texts in pieces.

    Args:
        stats: updated with each document.
    """
    batch, characters = TextBatch([], [], [], 0), 0
    for text in _divided(documents, split, stats):
        begins: PartText | None = text
        for piece in pieces(text.text, tokenizer):
            batch.parts.append(text.part)
            batch.begins.append(begins)
            batch.pieces.append(piece)
            begins = None
            batch = batch._replace(done=batch.done + len(piece.encode()))
            characters += len(piece)
            if characters >= _BATCH or len(batch.pieces) >= 4096:
                yield batch
                batch, characters = TextBatch([], [], [], batch.done), 0
    if batch.pieces:
        yield batch


def encode_texts(tokenizer: Encodes, batch: TextBatch) -> Rows:
    """The ids of a batch's texts."""
    return {IDS: [*tokenizer.encode_batch(batch.pieces)]}


def _write(
    encoded: Iterable[tuple[TextBatch, Rows]],
    tokenizer: Tokenizes,
    writers: Mapping[str, PartWriter],
    progress: Progress | None,
    total: int,
) -> None:
    """Append the ids of batches to the parts, in order."""
    for batch, rows in encoded:
        for part, begins, piece, ids in zip(batch.parts, batch.begins, batch.pieces, rows[IDS], strict=True):
            if begins:
                writers[part].begin(begins)
            writers[part].append(ids, piece, tokenizer)
        if progress:
            progress(batch.done, total)


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest dtype for all ids."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _map_part(path: Path, meta: dict[str, Any], dtype: np.dtype[Any], separator: int | None) -> Part:
    table, numbers = path.with_suffix(DOCUMENTS), (meta["bytes"], meta["documents"], meta["first_token_bytes"])
    check_size(path, meta["tokens"], dtype.itemsize, "tokens")
    check_size(table, meta["documents"], 2 * TABLE.itemsize, "documents")
    starts, covered = map_documents(table, meta["documents"], meta["tokens"])
    return Part(map_tokens(path, dtype, meta["tokens"]), *numbers, starts, covered, separator, meta["characters"])
