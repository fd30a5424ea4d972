"""The memory-mapped record store: for each field, a file with the ids of all records and a file with their offsets."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from heddle.data.encode import BATCH, Encoder, dtypes_of
from heddle.data.provenance import Provenance
from heddle.data.record_stats import RecordStats, RecordSummary, describe_examples
from heddle.data.records import NO_IDS, Column, Records, Rows
from heddle.data.sources.examples import Example
from heddle.data.store import Progress, TokenStore
from heddle.data.token_writer import Tokenizes, check_ids, map_tokens, settle
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.text.processes import Encodes, InOrder, in_order, suitable_workers

OFFSETS = np.dtype("<i8")
KINDS = ("values", "offsets")


@displayed()
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStore(BaseStore):
    """A directory of records in two parts.

    Attributes:
        sources: SHA-256 of the records, as `RecordStats` computes it.
        labels: kind of the labels: `classes`, `numbers` or `tokens`.
        split: `by`, `content` (a hash of the texts) or `sources` (the user's own validation files); `validation`, the requested
            share; `held_out`, records in the validation part; and how many of those have the same texts (`repeated`) or the same
            first text (`repeated_first`) as a training record.
    """

    FORMAT: ClassVar[str] = "heddle record store"
    VERSION: ClassVar[int] = 3
    WHAT: ClassVar[str] = "record store"

    labels: Labels
    train: Records
    validation: Records

    def tokens(self, part: str) -> int:
        """Tokens in all texts of a part."""
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
                empty_count,
            )
            for name, empty_count in (("train", 0), ("validation", meta["sources"]["blank"]))
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
    encoded: InOrder = in_order,
) -> RecordStore:
    """Tokenise records into a new store at `directory`.

    `meta.json` is written last, so the files of a killed build never open as a store. A record's texts alone decide its part:
    equal records are in the same part, and a record stays in its part when others are added. Classes are numbered in the order of
    their names, numerically if all are whole numbers; they are the classes of both parts.

    Args:
        validation: the share to hold out; None: every record has its `part`.
        labels: kind of the labels.
        progress: called as `progress(done, total)` with the UTF-8 bytes tokenised so far and in all.
        described: summary by a `RecordStats` of the same records and share; without it, all records are held in memory.
        workers: processes that tokenise; 0 or 1: this one alone; None: as many as make it faster. The result is the same.
        provenance: the files and settings that the records come from, to compare with those of another run.
        chat: how conversations become text, if records are conversations, which only this process tokenises.
        left_out: how many malformed records were left out, by kind of fault.
        encoded: what encodes the jobs, in order.

    Raises:
        HeddleError: a part has no record, there is only one class, the tokenizer cannot encode some text, the records differ from
            `described`, the store already exists, or the disk is full.
    """
    directory = Path(directory)
    check_new(directory, validation)
    if described is None:
        examples = list(examples)
        described = describe_examples(examples, RecordStats(validation, labels))
    stats, classes = RecordStats(validation, labels, described.below), described.classes
    jobs, count = record_jobs(examples, stats), record_workers(workers, tokenizer, described.bytes, chat)
    writers: dict[str, dict[str, _ColumnWriter]] = {}
    with cleared_on_error(directory, RecordStore.WHAT), ExitStack() as stack:
        encode = records_encoder(labels, classes, chat)
        for batch, rows in stack.enter_context(closing(encoded(encode, jobs, tokenizer, count))):
            if not writers:
                dtypes = dtypes_of(rows, tokenizer.vocab_size, labels)
                writers = {
                    part: {field: _ColumnWriter(directory / f"{part}.{field}", dtypes[field], stack) for field in rows}
                    for part in PARTS
                }
            _append(writers, rows, batch.parts, tokenizer.vocab_size)
            if progress:
                progress(batch.done, described.bytes)
        if stats.description() != described:
            raise HeddleError("the records have changed since they were first read; run the command again")
        sizes = {
            part: {field: writer.summary() for field, writer in columns.items()} for part, columns in writers.items()
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
            **sizes,
        }
        write_meta(directory / META, meta)
    return RecordStore.open(directory)


class RecordBatch(NamedTuple):
    """Records to tokenise at once, the part of each, and the UTF-8 bytes of all texts so far."""

    examples: list[Example]
    parts: list[str]
    done: int

    @property
    def pieces(self) -> list[str]:
        """All texts."""
        return [text for example in self.examples for text in example.written()]


def record_jobs(examples: Iterable[Example], stats: RecordStats) -> Iterator[RecordBatch]:
    """The non-empty records, in batches of bounded size; `stats` is updated with each record."""
    placed = ((example, part) for example in examples if (part := stats.add(example)))
    while batch := list(islice(placed, BATCH)):
        yield RecordBatch([example for example, _ in batch], [part for _, part in batch], stats.bytes)


def records_encoder(
    labels: Labels, classes: Sequence[str], chat: ChatTemplateConfig | None
) -> Callable[[Encodes, RecordBatch], Rows]:
    """What encodes a batch of records."""
    return lambda tokenizer, batch: Encoder(tokenizer, labels, classes, chat).rows(batch.examples)


def record_workers(workers: int | None, tokenizer: Encodes, size: int, chat: ChatTemplateConfig | None) -> int:
    """How many processes tokenise records of so many bytes; conversations are tokenised by this one."""
    if chat is not None and (workers or 0) > 1:
        raise HeddleError(f"workers = {workers}: conversations are tokenised by one process; leave it out")
    if chat is not None:
        return 0
    return suitable_workers(tokenizer, size) if workers is None else workers


def _append(
    writers: Mapping[str, Mapping[str, _ColumnWriter]], rows: Rows, parts: Sequence[str], vocab_size: int
) -> None:
    for field, values in rows.items():
        if field not in NO_IDS:
            check_ids(np.concatenate([np.asarray(row, dtype=np.int64) for row in values]), vocab_size)
        for part, columns in writers.items():
            columns[field].append([row for row, row_part in zip(values, parts, strict=True) if row_part == part])


def _map_column(path: Path, dtype: str, column_meta: Mapping[str, Any]) -> Column:
    """Map a column from its files."""
    sizes = {"values": column_meta["values"], "offsets": column_meta["records"] + 1}
    dtypes = {"values": np.dtype(dtype), "offsets": OFFSETS}
    arrays: dict[str, npt.NDArray[Any]] = {}
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
        arrays[kind] = map_tokens(file, dtypes[kind], count) if count else np.empty(0, dtypes[kind])
    return Column(arrays["values"], arrays["offsets"])
