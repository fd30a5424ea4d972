"""Counting records, naming their classes, and dividing them into parts."""

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
    """What a corpus of records holds.

    Attributes:
        records: records that are used, in both parts.
        empty: records left out because a text has nothing but blanks, and the origin of the first.
        blank: how many of these are the user's own to evaluate on; a share that is held out has none.
        bytes: UTF-8 bytes of all texts.
        sha256: SHA-256 of the records' digests, in order.
        held_out: records in the validation part.
        repeated: records of the validation part whose texts are also in the training part.
        repeated_first: those whose first text is, such as the source.
        classes: names of the classes of both parts.
        untaught: those that the validation part alone has, and the origin of the first.
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
    untaught: tuple[str, ...]
    first_untaught: str
    below: int


class RecordStats:
    """Accumulates an `RecordSummary` of a stream of records, and says which part each is for.

    Args:
        validation: the share to hold out; None: every record says its part.
        labels: what the labels are.
        below: records whose hash begins with a smaller number are held out too. It is 0 unless the share would hold out no record
            of several: then `description` holds out the one with the smallest hash, and says here how the next tally does so at
            once.
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
        # The training records with the smallest hash: its beginning, and their classes and origins.
        self._smallest = 2**64
        self._first: list[tuple[tuple[str, ...], str]] = []
        # The first eight bytes of the digests: of all texts, and of the first.
        self._seen: dict[str, tuple[array[int], ...]] = {
            part: (array("Q"), array("Q")) for part in ("train", "validation")
        }
        self._late: dict[str, str] = {}

    def add(self, example: Example) -> str | None:
        """Count a record. Returns its part; None if it is empty and left out.

        Raises:
            HeddleError: a label is not a number, but must be.
        """
        if example.empty:
            self._counts["empty"] += 1
            self.blank += example.part == "validation"
            self._empty[0] = self._empty[0] or example.origin
            return None
        written = [text.encode() for text in example.written()]
        digests = [hashlib.sha256(text).digest() for text in written]
        own = hashlib.sha256(b"".join(digests)).digest() if len(digests) > 1 else digests[0]
        number = int.from_bytes(own[:8], "big")
        part = example.part
        if self._validation is not None:
            part = "validation" if held_out(own, self._validation) or number < self.below else "train"
        if part not in self._seen:
            raise HeddleError(f"{example.origin}: part = {part!r} must be train or validation")
        self._counts[part] += 1
        self.bytes += sum(map(len, written))
        self._digest.update(own + repr(example.label).encode())
        for seen, digest in zip(self._seen[part], (own, digests[0]), strict=True):
            seen.append(int.from_bytes(digest[:8], "big"))
        names = self._names(example)
        self._label(part, names, example.origin)
        if part == "train" and number < self._smallest:
            self._smallest, self._first = number, []
        if part == "train" and number == self._smallest:
            self._first.append((names, example.origin))
        return part

    def _names(self, example: Example) -> tuple[str, ...]:
        """The classes of a record, if its label is one or has some."""
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
            self._late.setdefault(name, origin)

    def hold_out(self) -> int:
        """Hold out the record with the smallest hash, with its copies, if the share holds out none and others are left.

        Returns:
            What another tally of the same records needs as `below`.
        """
        moved = len(self._first)
        if not self._validation or self._counts["validation"] or moved == self._counts["train"]:
            return self.below
        self.below = self._smallest + 1
        self._counts["train"] -= moved
        self._counts["validation"] = moved
        own, _ = (np.frombuffer(seen, np.uint64) for seen in self._seen["train"])
        held = own == self._smallest
        self._seen = {
            part: tuple(array("Q", np.frombuffer(seen, np.uint64)[mask].tobytes()) for seen in self._seen["train"])
            for part, mask in (("train", ~held), ("validation", held))
        }
        for names, origin in self._first:
            self._classes -= Counter(names)
            self._label("validation", names, origin)
        return self.below

    def description(self) -> RecordSummary:
        """What was added.

        Raises:
            HeddleError: no record is left, a part has none, or the training part has only one class.
        """
        self.hold_out()
        counts = self._counts
        if not counts["train"] and not counts["validation"]:
            where = (
                f"every one has an empty text, the first at {self._empty[0]}" if counts["empty"] else "none was given"
            )
            raise HeddleError(f"there are no records to learn from: {where}")
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
        untaught = [label for label in self._late if label not in self._classes]
        train, validation = self._seen["train"], self._seen["validation"]
        whole, first = (
            int(np.isin(np.frombuffer(held, np.uint64), np.frombuffer(shown, np.uint64)).sum())
            for shown, held in zip(train, validation, strict=True)
        )
        return RecordSummary(
            records=counts["train"] + counts["validation"],
            empty=counts["empty"],
            blank=self.blank,
            first_empty=self._empty[0],
            bytes=self.bytes,
            sha256=self._digest.hexdigest(),
            held_out=counts["validation"],
            repeated=whole,
            repeated_first=first,
            classes=class_names([*self._classes, *untaught]),
            untaught=class_names(untaught),
            first_untaught=self._late[untaught[0]] if untaught else "",
            below=self.below,
        )


def for_parts(train: Iterable[Example], validation: Iterable[Example] | None) -> Iterator[Example]:
    """The user's training records and their validation records, each with its part; without the latter, as they are."""
    if validation is None:
        yield from train
        return
    for part, examples in (("train", train), ("validation", validation)):
        for example in examples:
            yield replace(example, part=part)


def describe_examples(examples: Iterable[Example], tally: RecordStats) -> RecordSummary:
    """Count, fingerprint and divide records in one pass."""
    for example in examples:
        tally.add(example)
    return tally.description()


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in order: by number if all are whole numbers, else by name."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def listed_names(names: tuple[str, ...], most: int = 8) -> str:
    """The first few names."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
