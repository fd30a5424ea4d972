"""Tokens in pieces: each is written atomically, then an entry that says it is complete, so a killed process loses one piece.

The pieces of a text are stretches of `PIECE` bytes of it, whoever makes them. So several processes, or machines with a directory
each, can make some of them, and copying the files of one directory into another joins them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from heddle.config.data import Labels
from heddle.data.encode import dtypes_of
from heddle.data.records import NO_IDS, Column, Rows
from heddle.data.token_writer import check_ids
from heddle.errors import HeddleError
from heddle.runs.token_cache import CacheKey
from heddle.text.processes import Encodes, Job, Result, in_order
from heddle.text.tokenizer import Tokenizer
from heddle.weights.checkpoints import TOKENIZER
from heddle.weights.files import fill_file, remove_leftovers, sha256_of, write_file

PIECE = 1 << 25  # UTF-8 bytes of a piece's text
VERSION = 1
SUFFIX = ".pieces"
MOST_NAMES = 4  # pieces in a message
ABSENT = "missing"  # what is wrong with a piece that was not made

Columns = dict[str, Column]


@runtime_checkable
class Batch(Protocol):
    """A job of tokenising: its texts, and the UTF-8 bytes of all texts so far."""

    @property
    def pieces(self) -> Sequence[str]: ...
    @property
    def done(self) -> int: ...


class _Placed(NamedTuple):
    """A job, the number of its piece, and whether this process makes that."""

    number: int
    due: bool
    job: Any


def root_of(store: Path) -> Path:
    """Where the pieces of a store are, until it is complete."""
    return store.with_name(store.name + SUFFIX)


def key_of(needs: CacheKey) -> str:
    """A name for everything that decides the tokens: sources, settings, and the tokenizer or how it is trained."""
    provenance = needs.provenance
    files = [[each.part, each.size, each.sha256] for each in provenance.sources]
    tokenizer = None if needs.tokenizer is None else needs.tokenizer.fingerprint()
    content = [VERSION, PIECE, files, dict(provenance.settings), provenance.recipe, tokenizer]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Pieces:
    """The pieces of one text's tokens.

    Attributes:
        directories: where to look for pieces; new ones are written in the first.
        tokenizer: the tokenizer of all of them.
        labels: kind of the records' labels.
        size: UTF-8 bytes of the text.
        part: (i, n): this process makes the pieces i, i + n, i + 2 n, …
    """

    directories: tuple[Path, ...]
    tokenizer: Tokenizer
    labels: Labels
    size: int
    part: tuple[int, int] = (0, 1)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return -(-self.size // PIECE)

    def missing(self) -> dict[int, str]:
        """What is wrong with each piece that no directory has whole, by its number."""
        missing = {}
        for number in range(self.count):
            problems = [self._problem(each, number) for each in self.directories]
            if None not in problems:
                missing[number] = next((each for each in problems if each and each != ABSENT), ABSENT)
        return missing

    def check(self) -> None:
        """Refuse to join pieces while some are missing.

        Raises:
            HeddleError: some are, with their numbers.
        """
        if missing := self.missing():
            names = ", ".join(f"{number} ({problem})" for number, problem in [*missing.items()][:MOST_NAMES])
            more = f" and {len(missing) - MOST_NAMES:,} more" if len(missing) > MOST_NAMES else ""
            raise HeddleError(
                f"{len(missing):,} of {self.count:,} pieces are not whole in {', '.join(map(str, self.directories))}: "
                f"{names}{more}; copy them there, or make them without --join"
            )

    def prepare(self) -> None:
        """Make the directory for new pieces, with the tokenizer, and remove what a killed process left."""
        directory = self.directories[0]
        directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(directory)
        self.tokenizer.save(directory / TOKENIZER)

    def remove(self) -> None:
        """Remove the directory of new pieces, and those of other texts beside it, after the store is written."""
        shutil.rmtree(self.directories[0].parent, ignore_errors=True)

    def in_order(
        self, work: Callable[[Encodes, Job], Result], jobs: Iterable[Job], tokenizer: Encodes, workers: int, /
    ) -> Generator[tuple[Job, Result], None, None]:
        """As `heddle.text.processes.in_order`, but takes the results of complete pieces from their files, and writes the others.

        With a part of several, pieces are only written: the results of all others are empty.

        Raises:
            HeddleError: a piece was made from another text.
        """

        def columns(tokenizer: Encodes, placed: _Placed) -> Columns:
            return self._columns(cast(Rows, work(tokenizer, placed.job))) if placed.due else {}

        seen = set()
        with closing(in_order(columns, self._placed(cast(Iterable[Batch], jobs)), tokenizer, workers)) as encoded:
            for (number, due), group in groupby(encoded, key=lambda each: (each[0].number, each[0].due)):
                seen.add(number)
                placed, results = map(list, zip(*group, strict=True))
                batches = [each.job for each in placed]
                if due:
                    self._write(number, batches, results)
                elif self.part[1] == 1:
                    results = self._load(number, batches)
                for batch, result in zip(batches, results, strict=True):
                    rows: Any = {field: [memoryview(row) for row in column] for field, column in result.items()}
                    yield batch, rows
        for number in sorted(set(range(self.count)) - seen):  # a job larger than a piece leaves the next ones empty
            if self._due(number):
                self._write(number, [], [])

    def _placed(self, jobs: Iterable[Batch]) -> Iterator[_Placed]:
        start, number, due = 0, -1, False
        for job in jobs:
            if start // PIECE != number:
                number = start // PIECE
                due = self._due(number)
            yield _Placed(number, due, job)
            start = job.done

    def _due(self, number: int) -> bool:
        """Whether this process makes a piece: it is one of its part, and no directory has it."""
        return number % self.part[1] == self.part[0] and self._directory_of(number) is None

    def _columns(self, rows: Rows) -> Columns:
        """Results as arrays, which take a tenth of the memory of lists."""
        dtypes, columns = dtypes_of(rows, self.tokenizer.vocab_size, self.labels), {}
        for field, values in rows.items():
            column = Column.of(values, dtypes[field] if field in NO_IDS else np.int64)
            if field not in NO_IDS:
                check_ids(column.values, self.tokenizer.vocab_size)
            columns[field] = Column(column.values.astype(dtypes[field]), column.offsets)
        return columns

    def _write(self, number: int, batches: Sequence[Batch], results: Sequence[Columns]) -> None:
        """Write a piece, then its entry."""
        file, entry = self._files(self.directories[0], number)
        arrays = {
            f"{place}.{field}.{kind}": getattr(column, kind)
            for place, columns in enumerate(results)
            for field, column in columns.items()
            for kind in ("values", "offsets")
        }
        with fill_file(file, replace=True) as partial, partial.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        end = min((number + 1) * PIECE, self.size)
        content = {
            "from": number * PIECE,
            "to": end,
            "texts": _digest(batches),
            "tokenizer": self.tokenizer.fingerprint(),
            "size": file.stat().st_size,
            "sha256": sha256_of(file),
        }
        write_file(entry, (json.dumps(content) + "\n").encode(), replace=True)

    def _load(self, number: int, batches: Sequence[Batch]) -> list[Columns]:
        directory = self._directory_of(number)
        if directory is None:
            raise HeddleError(f"piece {number} was removed meanwhile; run the command again")
        file, entry = self._files(directory, number)
        if json.loads(entry.read_bytes())["texts"] != _digest(batches):
            raise HeddleError(f"{file}: made from another text; remove it, and run the command again")
        results: list[Columns] = [{} for _ in batches]
        with np.load(file) as arrays:
            for name in arrays.files:
                place, field, kind = name.split(".")
                if kind == "values":
                    results[int(place)][field] = Column(arrays[name], arrays[f"{place}.{field}.offsets"])
        return results

    def _directory_of(self, number: int) -> Path | None:
        """The first directory that has a piece whole."""
        return next((each for each in self.directories if self._problem(each, number) is None), None)

    def _problem(self, directory: Path, number: int) -> str | None:
        """What is wrong with a piece in a directory."""
        file, entry = self._files(directory, number)
        try:
            content = json.loads(entry.read_bytes())
            size, sha256, tokenizer = (content[name] for name in ("size", "sha256", "tokenizer"))
        except OSError:
            return ABSENT
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"{entry} is damaged"
        if tokenizer != self.tokenizer.fingerprint():
            return f"{entry} is of another tokenizer"
        with suppress(OSError):
            if file.stat().st_size == size and sha256_of(file) == sha256:
                return None
        return f"{file} is damaged"

    @staticmethod
    def _files(directory: Path, number: int) -> tuple[Path, Path]:
        """The file of a piece, and that of its entry."""
        return directory / f"{number:06}.npz", directory / f"{number:06}.json"


def _digest(batches: Iterable[Batch]) -> str:
    """SHA-256 of the texts of jobs, and of where each begins."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(f"{len(batch.pieces)};".encode())
        for text in batch.pieces:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(f"{len(data)};".encode())
            digest.update(data)
    return digest.hexdigest()
