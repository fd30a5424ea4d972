"""The memory-mapped token store: a text is tokenised once, and training reads slices of it without loading it."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.checks import checked
from heddle.data.parts import PartText, PartWriter, Tokenizes, fill_empty, map_tokens, pieces, settle
from heddle.data.sources import Document, Tally
from heddle.errors import HeddleError

FORMAT, VERSION, META = "heddle token store", 1, "meta.json"
META_PARTIAL = f"{META}.partial"
PARTS = ("train", "validation")
Progress = Callable[[int, int | None], None]

# How much text goes through the tokenizer at once, in characters: this, times some 40 bytes per id, bounds the memory.
_BATCH = 1 << 21


@dataclass(frozen=True, slots=True)
class Part:
    """Train or validation.

    Attributes:
        tokens: Int[N], the ids; those of a store are mapped from the disk, read-only. Documents in the order of the
            sources, with the end-of-text id between two of them where the store was built so.
        bytes: UTF-8 bytes of the part's text.
        documents: how many documents it is made of.
        first_token_bytes: UTF-8 bytes of its first token, which is never a target: bits per byte divide by
            ``bytes - first_token_bytes``.
    """

    tokens: npt.NDArray[Any]
    bytes: int
    documents: int
    first_token_bytes: int


@dataclass(frozen=True, slots=True)
class TokenStore:
    """A directory of token ids in two parts.

    Attributes:
        vocab_size: V, of the tokenizer that wrote it.
        tokenizer: that tokenizer's fingerprint.
        sources: SHA-256 of the documents it was built from, as `heddle.data.describe` computes it.
        separator: the id between documents, or None.
    """

    directory: Path
    vocab_size: int
    tokenizer: str
    sources: str
    separator: int | None
    train: Part
    validation: Part

    @classmethod
    @checked()
    def open(cls, directory: str | Path) -> "TokenStore":
        """Map an existing store.

        Raises:
            HeddleError: there is no store, it is of another format or version, or a file does not have the size that
                ``meta.json`` states.
        """
        directory = Path(directory)
        meta = _read_meta(directory)
        try:
            dtype = _dtype(meta["vocab_size"])
            if meta["dtype"] != dtype.name:
                raise HeddleError(
                    f"{directory / META}: dtype {meta['dtype']!r} does not go with the vocabulary; build it again"
                )
            train, validation = (_map_part(directory / f"{name}.tokens", meta[name], dtype) for name in PARTS)
            return cls(
                directory=directory,
                vocab_size=meta["vocab_size"],
                tokenizer=meta["tokenizer"],
                sources=meta["sources"]["sha256"],
                separator=meta["separator"],
                train=train,
                validation=validation,
            )
        except (KeyError, TypeError) as error:
            raise HeddleError(
                f"{directory / META}: damaged ({type(error).__name__}: {error}); build the store again"
            ) from error


@checked()
def build_store(
    directory: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizes,
    validation_fraction: float,
    end_of_text: bool,
    progress: Progress | None = None,
) -> TokenStore:
    """Tokenise ``documents`` into a new store at ``directory``, streaming: memory does not grow with the corpus.

    ``meta.json`` is written last: what a killed build leaves never opens as a store, and the next build overwrites it.

    One document is split by characters: the first ``int(n * (1 - validation_fraction))`` are for training, the rest
    for validation. Of several documents each goes whole to one part, by a hash of its content, so it stays there
    whatever is added to the corpus; each part gets at least one. With ``end_of_text`` the tokenizer's end-of-text id
    stands between two documents of a part. ``progress(done, total)`` counts UTF-8 bytes; the total is known for one
    document only.

    Raises:
        HeddleError: no text, a part of fewer than two tokens, a fraction outside (0, 1), several documents to be
            separated and no end-of-text id in the tokenizer, an id outside its vocabulary, a store that is there
            already, or a full disk.
    """
    if not 0 < validation_fraction < 1:
        raise HeddleError(f"validation_fraction must lie between 0 and 1, both excluded, not {validation_fraction}")
    directory = Path(directory)
    if (directory / META).exists():
        raise HeddleError(f"{directory}: a token store is there already; delete it or choose another place")
    stream = (document.text for document in documents if document.text)
    head = list(itertools.islice(stream, 2))
    if not head:
        raise HeddleError("no text to build a token store from: every document is empty")
    single = len(head) == 1
    if end_of_text and not single and tokenizer.end_of_text is None:
        raise HeddleError("the tokenizer has no end-of-text token to put between documents; build without end_of_text")

    tally, vocab_size = Tally(), tokenizer.vocab_size
    if single:
        texts, total = _split_characters(head[0], validation_fraction, tally), len(head[0].encode())
    else:
        texts, total = _split_documents(itertools.chain(head, stream), validation_fraction, tally), None
    separator = tokenizer.end_of_text if end_of_text else None
    with _cleared_on_error(directory):
        writers = {
            name: PartWriter(directory / f"{name}.tokens", _dtype(vocab_size), vocab_size, separator) for name in PARTS
        }
        with writers["train"], writers["validation"]:
            _encode(texts, tokenizer, writers, progress, total)
        if not single:
            fill_empty(writers["train"], writers["validation"])
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": _dtype(vocab_size).name,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer.fingerprint(),
            "sources": asdict(tally.description()),
            "split": {"by": "characters" if single else "documents", "validation_fraction": validation_fraction},
            "separator": separator,
            **{name: writer.summary(tokenizer) for name, writer in writers.items()},
        }
        _write_meta(directory / META, meta)
    return TokenStore.open(directory)


@contextmanager
def _cleared_on_error(directory: Path) -> Iterator[None]:
    """Make ``directory``; on an error take the files of an unfinished store out of it, and say what the system said."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for name in [
            *(f"{part}.tokens" for part in PARTS),
            *(f"{part}.tokens.partial" for part in PARTS),
            META_PARTIAL,
        ]:
            with suppress(OSError):
                (directory / name).unlink()
        if isinstance(error, OSError):
            raise HeddleError(f"cannot write the token store {directory}: {error.strerror or error}") from error
        raise


def _write_meta(path: Path, meta: dict[str, Any]) -> None:
    partial = path.with_name(META_PARTIAL)
    with partial.open("wb") as stream:
        stream.write((json.dumps(meta, indent=2) + "\n").encode())
        settle(stream)
    partial.rename(path)


def _split_characters(text: str, fraction: float, tally: Tally) -> Iterator[PartText]:
    """One document: its beginning for training, its end for validation."""
    tally.add(text.encode())
    cut = int(len(text) * (1 - fraction))
    halves = {"train": text[:cut], "validation": text[cut:]}
    return iter([PartText(part, half, 0, len(half.encode())) for part, half in halves.items()])


def _split_documents(texts: Iterable[str], fraction: float, tally: Tally) -> Iterator[PartText]:
    """Several documents: the part is decided by each one's content alone."""
    limit = int(fraction * 2**64)
    for text in texts:
        data = text.encode()
        rank = int.from_bytes(tally.add(data)[:8], "big")
        yield PartText("validation" if rank < limit else "train", text, rank, len(data))


def _encode(
    texts: Iterable[PartText],
    tokenizer: Tokenizes,
    writers: dict[str, PartWriter],
    progress: Progress | None,
    total: int | None,
) -> None:
    """Tokenise in batches of bounded size and append to the parts, in order."""
    done = 0
    # None marks a later piece of the document before it.
    batch: list[tuple[PartWriter, PartText | None, str]] = []

    def flush() -> None:
        for (writer, begins, _), ids in zip(batch, tokenizer.encode_batch([piece for *_, piece in batch]), strict=True):
            if begins:
                writer.begin(begins)
            writer.append(ids)
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


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _read_meta(directory: Path) -> dict[str, Any]:
    path = directory / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"{directory}: no token store there ({META}: {error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise HeddleError(f"{path}: damaged, not JSON; build the store again") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise HeddleError(f"{path}: not the description of a heddle token store")
    if meta.get("version") != VERSION:
        raise HeddleError(
            f"{path}: version {meta.get('version')} of the format; this heddle reads {VERSION}. Build it again"
        )
    return meta


def _map_part(path: Path, meta: dict[str, int], dtype: np.dtype[Any]) -> Part:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise HeddleError(f"{path}: {error.strerror}; build the token store again") from error
    if size != meta["tokens"] * dtype.itemsize or not size:
        promised = f"{meta['tokens']} tokens of {dtype.itemsize} bytes"
        raise HeddleError(f"{path}: {size} bytes, but {META} promises {promised}; build the store again")
    return Part(map_tokens(path, dtype, meta["tokens"]), meta["bytes"], meta["documents"], meta["first_token_bytes"])
