"""The memory-mapped store of records: each field of all records is a file of ids, next to a file of where each record starts."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from heddle.checks import between, checked
from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.data import MOST_WORKERS, Labels
from heddle.data.base import META, PARTS, BaseStore, check_new, cleared_on_error, read_meta, write_meta
from heddle.data.encode import BATCH, Encoder, Rows, dtypes_of
from heddle.data.provenance import Provenance
from heddle.data.record_stats import RecordStats, RecordSummary, describe_examples
from heddle.data.records import NO_IDS, Column, Records
from heddle.data.sources.examples import Example
from heddle.data.store import Progress, TokenStore
from heddle.data.token_writer import Tokenizes, check_ids, map_tokens, settle
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.text.processes import Encodes, in_order, suitable_workers

OFFSETS = np.dtype("<i8")
KINDS = ("values", "offsets")


@displayed()
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStore(BaseStore):
    """A directory of records in two parts.

    Attributes:
        sources: SHA-256 of the records, as `RecordStats` computes it.
        labels: what the labels are: `classes`, `numbers` or `tokens`.
        split: `by`, `content` (a hash of the texts) or `sources` (the user's own validation files); `validation`, the share asked
            for; `held_out`, records in the validation part; and how many of those have the same texts (`repeated`) or the same
            first text (`repeated_first`) as a training record.
    """

    FORMAT: ClassVar[str] = "heddle record store"
    VERSION: ClassVar[int] = 3
    WHAT: ClassVar[str] = "record store"

    labels: Labels
    train: Records
    validation: Records

    def tokens(self, part: str) -> int:
        """How many tokens a part has, in all its texts."""
        records: Records = getattr(self, part)
        return records.size

    @classmethod
    def _names(cls, meta: Mapping[str, Any]) -> list[str]:
        return [f"{part}.{field}.{kind}" for part in PARTS for field in meta["columns"] for kind in KINDS]

    @classmethod
    def _content(cls, directory: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        dtypes, classes = meta["columns"], tuple(meta["classes"])
        parts = {
            name: Records(
                {
                    field: _map_column(directory / f"{name}.{field}", dtype, meta[name][field])
                    for field, dtype in dtypes.items()
                },
                classes,
                blank,
            )
            for name, blank in (("train", 0), ("validation", meta["sources"]["blank"]))
        }
        return {"labels": meta["labels"], **parts}


Store = TokenStore | RecordStore


@checked()
def open_store(directory: str | Path) -> Store:
    """Open a store of either kind: of texts, or of records.

    Raises:
        HeddleError: there is none, or it is damaged.
    """
    directory = Path(directory)
    if read_meta(directory).get("format") == RecordStore.FORMAT:
        return RecordStore.open(directory)
    return TokenStore.open(directory)


class _ColumnWriter:
    """Appends one field's rows of one part to its two files."""

    def __init__(self, path: Path, dtype: np.dtype[Any], stack: ExitStack) -> None:
        self.name, self.dtype, self.values, self.records = path.name, dtype, 0, 0
        self._streams = {kind: stack.enter_context(path.with_name(f"{path.name}.{kind}").open("wb")) for kind in KINDS}
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
        return {"records": self.records, "values": self.values}

    def files(self) -> dict[str, str]:
        """SHA-256 of both files, by name."""
        return {f"{self.name}.{kind}": digest.hexdigest() for kind, digest in self._digests.items()}


@checked(workers=between(0, MOST_WORKERS))
def build_records(
    directory: str | Path,
    examples: Iterable[Example],
    tokenizer: Tokenizes,
    validation: float | None,
    labels: Labels = "classes",
    progress: Progress | None = None,
    described: RecordSummary | None = None,
    workers: int | None = None,
    provenance: Provenance | None = None,
    chat: ChatTemplateConfig | None = None,
    left_out: Mapping[str, int] | None = None,
) -> RecordStore:
    """Tokenise records into a new store at `directory`.

    `meta.json` is written last, so what a killed build leaves never opens as a store. A record's texts alone decide its part, so
    equal ones are in one part, and a record stays in its part when others are added. Classes are numbered in the order of their
    names, numerically if all are whole numbers; both parts decide which there are.

    Args:
        validation: the share to hold out; None: every record says its part.
        labels: what the labels are.
        progress: called as `progress(done, total)` with the UTF-8 bytes tokenised so far and in all.
        described: from an `RecordStats` of the same records and share; without it, all records are held in memory.
        workers: processes that tokenise; 0 or 1: this one alone; None: as many as make it faster. The result is the same.
        provenance: the files and settings that the records come from, to compare with those of another run.
        chat: how conversations become text, if records are conversations, which this process alone tokenises.
        left_out: how many records could not be read and were left out, by what is wrong with them.

    Raises:
        HeddleError: a part has no record, there is only one class, the tokenizer does not know some text, the records are not those
            described, the store already exists, or the disk is full.
    """
    directory = Path(directory)
    check_new(directory, validation)
    if described is None:
        examples = list(examples)
        described = describe_examples(examples, RecordStats(validation, labels))
    tally, classes = RecordStats(validation, labels, described.below), described.classes
    count = suitable_workers(tokenizer, described.bytes) if workers is None else workers
    if chat is not None:
        if (workers or 0) > 1:
            raise HeddleError(f"workers = {workers}: conversations are tokenised by one process; leave it out")
        count = 0
    writers: dict[str, dict[str, _ColumnWriter]] = {}

    def encode(tokenizer: Encodes, batch: _Batch) -> Rows:
        return Encoder(tokenizer, labels, classes, chat).rows(batch.examples)

    with cleared_on_error(directory, RecordStore.WHAT), ExitStack() as stack:
        encoded = stack.enter_context(closing(in_order(encode, _batches(examples, tally), tokenizer, count)))
        for batch, rows in encoded:
            if not writers:
                dtypes = dtypes_of(rows, tokenizer.vocab_size, labels)
                writers = {
                    part: {field: _ColumnWriter(directory / f"{part}.{field}", dtypes[field], stack) for field in rows}
                    for part in PARTS
                }
            _append(writers, rows, batch.parts, tokenizer.vocab_size)
            if progress:
                progress(batch.done, described.bytes)
        if tally.description() != described:
            raise HeddleError("the records have changed since they were first read; run the command again")
        written = {
            part: {field: writer.summary() for field, writer in found.items()} for part, found in writers.items()
        }
        files = (writer.files() for columns in writers.values() for writer in columns.values())
        meta = {
            **RecordStore.heading(tokenizer, provenance, files, left_out),
            "sources": {name: getattr(described, name) for name in ("records", "bytes", "sha256", "empty", "blank")},
            "split": {
                "by": "sources" if validation is None else "content",
                "validation": validation,
                **{name: getattr(described, name) for name in ("held_out", "repeated", "repeated_first")},
            },
            "labels": labels,
            "classes": list(classes),
            "columns": {field: dtype.str for field, dtype in dtypes.items()},
            **written,
        }
        write_meta(directory / META, meta)
    return RecordStore.open(directory)


class _Batch(NamedTuple):
    """Records to tokenise at once, the parts that they are for, and the UTF-8 bytes of all texts up to here."""

    examples: list[Example]
    parts: list[str]
    done: int


def _batches(examples: Iterable[Example], tally: RecordStats) -> Iterator[_Batch]:
    """The records that are not empty, in batches of bounded size."""
    placed = ((example, part) for example in examples if (part := tally.add(example)))
    while found := list(islice(placed, BATCH)):
        yield _Batch([example for example, _ in found], [part for _, part in found], tally.bytes)


def _append(
    writers: Mapping[str, Mapping[str, _ColumnWriter]], rows: Rows, parts: Sequence[str], vocab_size: int
) -> None:
    """Write a batch of rows to their parts."""
    for field, found in rows.items():
        if field not in NO_IDS:
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
