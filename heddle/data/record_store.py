"""The memory-mapped store of records: each field of all records is a file of ids, next to a file of where each record starts."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.checks import checked
from heddle.config.data import Labels
from heddle.data.encode import BATCH, Encoder, Rows, dtypes_of
from heddle.data.examples import LABEL, Example
from heddle.data.parts import Tokenizes, check_ids, map_tokens, settle
from heddle.data.records import Column, Records
from heddle.data.store import (
    META,
    PARTS,
    Corpus,
    Progress,
    TokenStore,
    cleared_on_error,
    read_meta,
    write_meta,
)
from heddle.data.tally import ExamplesDescription, ExamplesTally, describe_examples
from heddle.errors import HeddleError, pluralize

FORMAT, VERSION = "heddle record store", 1
OFFSETS = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class RecordStore:
    """A directory of records in two parts.

    Attributes:
        vocab_size: V, of the tokenizer that wrote the store.
        tokenizer: that tokenizer's fingerprint.
        sources: SHA-256 of the records, as `ExamplesTally` computes it.
        labels: what the labels are: `classes`, `numbers` or `tokens`.
        split: `by`, `content` (a hash of the texts) or `sources` (the user's own validation files); `validation`, the share asked
            for; `held_out`, records in the validation part; and how many of those have the same texts (`repeated`) or the same
            first text (`repeated_first`) as a training record.
    """

    directory: Path
    vocab_size: int
    tokenizer: str
    sources: str
    labels: Labels
    split: dict[str, Any]
    train: Records
    validation: Records

    @property
    def corpus(self) -> Corpus:
        """Both parts, as a task reads them."""
        return Corpus(self.train, self.validation)

    def tokens(self, part: str) -> int:
        """How many tokens a part has, in all its texts."""
        records: Records = getattr(self, part)
        return sum(len(column.values) for name, column in records.columns.items() if name != LABEL)

    @classmethod
    @checked()
    def open(cls, directory: str | Path) -> "RecordStore":
        """Open an existing store, mapping its files.

        Raises:
            HeddleError: there is no store, it has another format or version, or a file does not have the size in `meta.json`.
        """
        directory = Path(directory)
        meta = read_meta(directory)
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            raise HeddleError(f"{directory / META}: not a record store of version {VERSION}; build the store again")
        try:
            parts = {
                name: Records(
                    {
                        field: _map_column(directory / f"{name}.{field}", meta["columns"][field], meta[name][field])
                        for field in meta["columns"]
                    },
                    tuple(meta["classes"]),
                )
                for name in PARTS
            }
            return cls(
                directory=directory,
                vocab_size=meta["vocab_size"],
                tokenizer=meta["tokenizer"],
                sources=meta["sources"]["sha256"],
                labels=meta["labels"],
                split=dict(meta["split"]),
                **parts,
            )
        except (KeyError, TypeError) as error:
            raise HeddleError(
                f"{directory / META}: damaged ({type(error).__name__}: {error}); build the store again"
            ) from error

    def verify(self, *parts: str) -> None:
        """Compare the files of these parts, or of both, with their hashes in `meta.json`.

        Raises:
            HeddleError: a file has changed.
        """
        meta = read_meta(self.directory)
        for name in parts or PARTS:
            for field, written in meta[name].items():
                for kind, digest in written["sha256"].items():
                    file = self.directory / f"{name}.{field}.{kind}"
                    with file.open("rb") as stream:
                        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                            raise HeddleError(
                                f"{file}: damaged, not what was written; restore the file or train a new run"
                            )


Store = TokenStore | RecordStore


@checked()
def open_store(directory: str | Path) -> Store:
    """Open a store of either kind: of texts, or of records.

    Raises:
        HeddleError: there is none, or it is damaged.
    """
    directory = Path(directory)
    if read_meta(directory).get("format") == FORMAT:
        return RecordStore.open(directory)
    return TokenStore.open(directory)


class _ColumnWriter:
    """Appends one field's rows of one part to its two files."""

    def __init__(self, path: Path, dtype: np.dtype[Any], stack: ExitStack) -> None:
        self.dtype, self.values, self.records = dtype, 0, 0
        self._streams = {
            kind: stack.enter_context(path.with_name(f"{path.name}.{kind}").open("wb"))
            for kind in ("values", "offsets")
        }
        self._digests = {kind: hashlib.sha256() for kind in self._streams}
        self._write("offsets", np.zeros(1, OFFSETS))

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows of values."""
        if not rows:
            return
        column = Column.of(rows, self.dtype)
        self._write("values", column.values)
        self._write("offsets", column.offsets[1:].astype(OFFSETS) + self.values)
        self.values += len(column.values)
        self.records += len(rows)

    def _write(self, kind: str, values: npt.NDArray[Any]) -> None:
        self._streams[kind].write(values.data)
        self._digests[kind].update(values.data)

    def summary(self) -> dict[str, Any]:
        """Flush to the disk; the column's entry in `meta.json`."""
        for stream in self._streams.values():
            settle(stream)
        digests = {kind: digest.hexdigest() for kind, digest in self._digests.items()}
        return {"records": self.records, "values": self.values, "sha256": digests}


@checked()
def build_records(
    directory: str | Path,
    examples: Iterable[Example],
    tokenizer: Tokenizes,
    validation: float | None,
    labels: Labels = "classes",
    progress: Progress | None = None,
    described: ExamplesDescription | None = None,
) -> RecordStore:
    """Tokenise records into a new store at `directory`.

    `meta.json` is written last, so what a killed build leaves never opens as a store. A record's texts alone decide its part, so
    equal ones are in one part, and a record stays in its part when others are added. Classes are numbered in the order of their
    names, numerically if all are whole numbers; the training part decides which there are.

    Args:
        validation: the share to hold out; None: every record says its part.
        labels: what the labels are.
        progress: called as `progress(done, total)` with the UTF-8 bytes tokenised so far and in all.
        described: from an `ExamplesTally` of the same records and share; without it, all records are held in memory.

    Raises:
        HeddleError: a part has no record, there is only one class, a label is not in the training part, the tokenizer does not know
            some text, the records are not those described, the store already exists, or the disk is full.
    """
    if validation is not None and not 0 < validation < 1:
        raise HeddleError(f"validation must be between 0 and 1, both excluded, not {validation}")
    directory = Path(directory)
    if (directory / META).exists():
        raise HeddleError(f"{directory}: a store already exists here; delete it or choose another directory")
    if described is None:
        examples = list(examples)
        described = describe_examples(examples, ExamplesTally(validation, labels))
    encoder, tally = Encoder(tokenizer, labels, described.classes), ExamplesTally(validation, labels)
    writers: dict[str, dict[str, _ColumnWriter]] = {}
    with cleared_on_error(directory, "record store"), ExitStack() as stack:
        placed = ((example, part) for example in examples if (part := tally.add(example)))
        while batch := list(islice(placed, BATCH)):
            rows = encoder.rows([example for example, _ in batch])
            if not writers:
                dtypes = dtypes_of(rows, tokenizer.vocab_size, labels)
                writers = {
                    part: {field: _ColumnWriter(directory / f"{part}.{field}", dtypes[field], stack) for field in rows}
                    for part in PARTS
                }
            _append(writers, rows, [part for _, part in batch], tokenizer.vocab_size)
            if progress:
                progress(tally.bytes, described.bytes)
        if tally.description() != described:
            raise HeddleError("the records have changed since they were first read; run the command again")
        written = {
            part: {field: writer.summary() for field, writer in found.items()} for part, found in writers.items()
        }
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.fingerprint(),
            "sources": {name: getattr(described, name) for name in ("records", "bytes", "sha256", "empty")},
            "split": {
                "by": "sources" if validation is None else "content",
                "validation": validation,
                **{name: getattr(described, name) for name in ("held_out", "repeated", "repeated_first")},
            },
            "labels": labels,
            "classes": list(described.classes),
            "columns": {field: dtype.str for field, dtype in dtypes.items()},
            **written,
        }
        write_meta(directory / META, meta)
    return RecordStore.open(directory)


def _append(
    writers: Mapping[str, Mapping[str, _ColumnWriter]], rows: Rows, parts: Sequence[str], vocab_size: int
) -> None:
    """Write a batch of rows to their parts."""
    for field, found in rows.items():
        if field != LABEL:
            check_ids(np.concatenate([np.asarray(row, dtype=np.int64) for row in found]), vocab_size)
        for part, columns in writers.items():
            columns[field].append([row for row, its in zip(found, parts, strict=True) if its == part])


def _map_column(path: Path, dtype: str, written: Mapping[str, Any]) -> Column:
    """A column, mapped from its files."""
    sizes = {"values": written["values"], "offsets": written["records"] + 1}
    dtypes = {"values": np.dtype(dtype), "offsets": OFFSETS}
    found: dict[str, npt.NDArray[Any]] = {}
    for kind, count in sizes.items():
        file = path.with_name(f"{path.name}.{kind}")
        try:
            size = file.stat().st_size
        except OSError as error:
            raise HeddleError(f"{file}: {error.strerror}; build the store again") from error
        if size != count * dtypes[kind].itemsize:
            raise HeddleError(
                f"{file}: {size} bytes, but {META} says {pluralize(count, 'value')} of {dtypes[kind].itemsize} bytes; "
                "build the store again"
            )
        # An empty file cannot be mapped.
        found[kind] = map_tokens(file, dtypes[kind], count) if count else np.empty(0, dtypes[kind])
    return Column(found["values"], found["offsets"])
