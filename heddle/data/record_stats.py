"""Counting records, collecting their classes, and splitting them into parts."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from heddle.config.data import Labels
from heddle.data.sources.documents import held_out
from heddle.data.sources.examples import Example, as_number
from heddle.errors import HeddleError, pluralize


@dataclass(frozen=True)
class RecordSummary:
    """Counts, classes and fingerprint of a corpus of records.

    Attributes:
        records: records in both parts.
        empty: records left out because a text is empty or whitespace; `first_empty` is the origin of the first.
        blank: how many of these are in the user's validation sources; 0 for a held-out share.
        bytes: UTF-8 bytes of all texts.
        sha256: SHA-256 of the records' digests, in order.
        held_out: records in the validation part.
        repeated: records of the validation part whose texts are also in the training part.
        repeated_first: records of the validation part whose first text, such as the source, is also in the training part.
        classes: names of the classes of both parts.
        validation_only: classes that only the validation part has; `first_validation_only` is the origin of the first.
        below: see `RecordStats`.
    """

    records: int
    empty: int
    first_empty: str
    blank: int
    bytes: int
    sha256: str
    held_out: int
    repeated: int
    repeated_first: int
    classes: tuple[str, ...]
    validation_only: tuple[str, ...]
    first_validation_only: str
    below: int


class RecordStats:
    """Accumulates a `RecordSummary` of a stream of records, and assigns each record to a part.

    Args:
        validation: the share to hold out; None: every record has its `part`.
        labels: kind of the labels.
        below: records whose hash begins with a smaller number are held out too. It is 0 unless the share would hold out none of
            several records: then `description` holds out the one with the smallest hash, and the summary has the `below` with
            which a second pass holds it out at once.
    """

    def __init__(self, validation: float | None, labels: Labels = "classes", below: int = 0) -> None:
        self.bytes = 0
        self.below = below
        self._validation, self._labels = validation, labels
        self._digest = hashlib.sha256()
        self._empty: list[str] = ["", ""]
        self._counts = {"train": 0, "validation": 0, "empty": 0}
        self.blank = 0
        self._classes: Counter[str] = Counter()
        # The smallest hash of a training record (its first eight bytes), with the classes and origins of the records that have it.
        self._smallest = 2**64
        self._smallest_records: list[tuple[tuple[str, ...], str]] = []
        # By part, the first eight bytes of the digests: of all texts of a record, and of its first text.
        self._hashes: dict[str, tuple[array[int], ...]] = {
            part: (array("Q"), array("Q")) for part in ("train", "validation")
        }
        self._validation_labels: dict[str, str] = {}

    def add(self, example: Example) -> str | None:
        """Count a record. Returns its part, or None if it is empty and left out.

        Raises:
            HeddleError: a label is not a number, but must be.
        """
        if example.empty:
            self._counts["empty"] += 1
            self.blank += example.part == "validation"
            self._empty[0] = self._empty[0] or example.origin
            return None
        texts = [text.encode() for text in example.written()]
        digests = [hashlib.sha256(text).digest() for text in texts]
        record_digest = hashlib.sha256(b"".join(digests)).digest() if len(digests) > 1 else digests[0]
        number = int.from_bytes(record_digest[:8], "big")
        part = example.part
        if self._validation is not None:
            part = "validation" if held_out(record_digest, self._validation) or number < self.below else "train"
        if part not in self._hashes:
            raise HeddleError(f"{example.origin}: part = {part!r} must be train or validation")
        self._counts[part] += 1
        self.bytes += sum(map(len, texts))
        self._digest.update(record_digest + repr(example.label).encode())
        for hashes, digest in zip(self._hashes[part], (record_digest, digests[0]), strict=True):
            hashes.append(int.from_bytes(digest[:8], "big"))
        names = self._names(example)
        self._label(part, names, example.origin)
        if part == "train" and number < self._smallest:
            self._smallest, self._smallest_records = number, []
        if part == "train" and number == self._smallest:
            self._smallest_records.append((names, example.origin))
        return part

    def _names(self, example: Example) -> tuple[str, ...]:
        """The classes of a record; empty if its label is not a class."""
        if example.label is None or self._labels == "roles":
            return ()
        if self._labels == "numbers":
            as_number(example)
            return ()
        return tuple(filter(None, example.label)) if isinstance(example.label, tuple) else (str(example.label),)

    def _label(self, part: str, names: tuple[str, ...], origin: str) -> None:
        if part == "train":
            self._classes.update(names)
            return
        for name in names:
            self._validation_labels.setdefault(name, origin)

    def hold_out(self) -> int:
        """Hold out the record with the smallest hash, with its copies, if the share holds out none and others are left.

        Returns:
            The `below` for another pass over the same records.
        """
        moved = len(self._smallest_records)
        if not self._validation or self._counts["validation"] or moved == self._counts["train"]:
            return self.below
        self.below = self._smallest + 1
        self._counts["train"] -= moved
        self._counts["validation"] = moved
        record_hashes, _ = (np.frombuffer(hashes, np.uint64) for hashes in self._hashes["train"])
        held_out = record_hashes == self._smallest
        self._hashes = {
            part: tuple(
                array("Q", np.frombuffer(hashes, np.uint64)[mask].tobytes()) for hashes in self._hashes["train"]
            )
            for part, mask in (("train", ~held_out), ("validation", held_out))
        }
        for names, origin in self._smallest_records:
            self._classes -= Counter(names)
            self._label("validation", names, origin)
        return self.below

    def description(self) -> RecordSummary:
        """Summarise the records added so far.

        Raises:
            HeddleError: there are no records, a part is empty, or the training part has only one class.
        """
        self.hold_out()
        counts = self._counts
        if not counts["train"] and not counts["validation"]:
            reason = f"all have an empty text, the first at {self._empty[0]}" if counts["empty"] else "none was given"
            raise HeddleError(f"there are no records to learn from: {reason}")
        for part in ("train", "validation"):
            if not counts[part]:
                raise HeddleError(
                    f"the {part} part would have none of the {pluralize(counts['train'] + counts['validation'], 'record')}: "
                    "give more records, another share (validation=0.2), or your own validation_sources"
                )
        if self._labels == "several" and not self._classes:
            raise HeddleError("no training record has a label: are they in another column (label=...)?")
        if self._classes and len(self._classes) < 2 and self._labels != "several":
            raise HeddleError(
                f"every training record has the label {next(iter(self._classes))!r}; classes need at least two: "
                "are they in another column (label=...)?"
            )
        validation_only = [label for label in self._validation_labels if label not in self._classes]
        train, validation = self._hashes["train"], self._hashes["validation"]
        repeated, repeated_first = (
            int(np.isin(np.frombuffer(validation_hashes, np.uint64), np.frombuffer(train_hashes, np.uint64)).sum())
            for train_hashes, validation_hashes in zip(train, validation, strict=True)
        )
        return RecordSummary(
            records=counts["train"] + counts["validation"],
            empty=counts["empty"],
            blank=self.blank,
            first_empty=self._empty[0],
            bytes=self.bytes,
            sha256=self._digest.hexdigest(),
            held_out=counts["validation"],
            repeated=repeated,
            repeated_first=repeated_first,
            classes=class_names([*self._classes, *validation_only]),
            validation_only=class_names(validation_only),
            first_validation_only=self._validation_labels[validation_only[0]] if validation_only else "",
            below=self.below,
        )


def for_parts(train: Iterable[Example], validation: Iterable[Example] | None) -> Iterator[Example]:
    """Training records and validation records, each marked with its part; without validation records, unchanged."""
    if validation is None:
        yield from train
        return
    for part, examples in (("train", train), ("validation", validation)):
        for example in examples:
            yield replace(example, part=part)


def describe_examples(examples: Iterable[Example], stats: RecordStats) -> RecordSummary:
    """Count, fingerprint and split records in one pass."""
    for example in examples:
        stats.add(example)
    return stats.description()


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: by number if all are whole numbers, else by name."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def listed_names(names: tuple[str, ...], most: int = 8) -> str:
    """The first few names, separated by commas."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
