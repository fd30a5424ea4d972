"""Records as columns of ids: examples of several fields, such as a source and its target, or a text and its label."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.display import displayed
from heddle.errors import HeddleError

WRITTEN = "written"
"""The column with the original conversations: JSON in UTF-8, a list of [role, content]."""
MISSED = "missed"
"""The column with the number of a record's labels that have no class, where a text has several labels."""
NO_IDS = ("label", WRITTEN, MISSED)

Rows = dict[str, list[Sequence[Any]]]
"""The values of some texts or records, by field: a row for each of them."""


@displayed()
@dataclass(frozen=True, slots=True)
class Column:
    """One field of all records: a sequence of values for each record, concatenated.

    Attributes:
        values: [N], ids, classes or numbers; a store's are mapped from the disk, read-only.
        offsets: Int[R + 1], where each record's values start, and the end.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Iterable[Any]], dtype: npt.DTypeLike = np.int64) -> "Column":
        """Make a column in memory from each record's values."""
        arrays = [np.asarray(row if isinstance(row, memoryview) else list(row), dtype=dtype) for row in rows]
        offsets = np.cumsum([0, *(len(row) for row in arrays)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, dtype=dtype), *arrays]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, record: int) -> npt.NDArray[Any]:
        """The values of one record."""
        if not 0 <= record < len(self):
            raise IndexError(f"record {record} of {len(self)}")
        return self.values[self.offsets[record] : self.offsets[record + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Int[R], number of values of each record."""
        return np.diff(self.offsets)


@displayed()
@dataclass(frozen=True, slots=True)
class Records:
    """The training or the validation part of a corpus of records.

    Attributes:
        columns: by name: `source` and `target`, or `text` with `pair` and `label`, or `messages` with `label` and `written`. Texts
            are ids without special ones, except those of a chat template. A `label` has one value per record, a class or a number,
            or one per id of the text, with `IGNORED` where an id has none; for conversations, the number of the answer that an id
            belongs to (see `heddle.data.encode.answer_numbers`). `missed`, if present, counts labels that have no class.
        classes: names of the classes, in the order of their numbers; empty if there are no classes.
        blank: how many further records were left out because a text is empty.

    Raises:
        HeddleError: columns have different numbers of records.
    """

    columns: Mapping[str, Column]
    classes: tuple[str, ...] = ()
    blank: int = 0

    def __post_init__(self) -> None:
        counts = {name: len(column) for name, column in self.columns.items()}
        if len(set(counts.values())) != 1:
            raise HeddleError(f"all columns of a corpus need the same number of records, not {counts}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def size(self) -> int:
        """Number of ids in all texts, without labels."""
        return sum(len(column.values) for column in self.texts.values())

    @property
    def texts(self) -> dict[str, Column]:
        """The columns of ids."""
        return {name: column for name, column in self.columns.items() if name not in NO_IDS}
