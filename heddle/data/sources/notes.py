"""Notes of one pass over the sources: malformed items, skipped files and suspicious data, with their places."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from heddle.errors import HeddleError, pluralize

FILES, LINES = 100, 5  # listed for each kind of note: files, and places in each file
KINDS = 4  # extensions of skipped files that are listed
OTHER = "other files"

_PLACE = re.compile(r"(?P<file>.*?)(?::(?P<line>\d+)| (?P<item>item \d+))?", re.DOTALL)
Item = TypeVar("Item")
Result = TypeVar("Result")


class MalformedError(HeddleError):
    """An item of a source, or the rest of a file, that cannot be read.

    Args:
        kind: kind of fault in a word or two, by which faults are counted.
        where: a path, or `path:line`.
        fault: the fault, to follow the place in a message.
        advice: what to do.
        doubtful: whether the fault puts all other items in doubt, so that it must not be skipped.
    """

    def __init__(self, kind: str, where: str | Path, fault: str, advice: str = "", doubtful: bool = False) -> None:
        super().__init__(f"{where}: {fault}{'; ' if advice else ''}{advice}")
        self.kind, self.where, self.fault, self.advice, self.doubtful = kind, str(where), fault, advice, doubtful


@dataclass(frozen=True, slots=True)
class Place:
    """Places of one kind of note in one file.

    Attributes:
        file: the file; empty for items of a list.
        count: number of places.
        first: the first places: lines or items; empty if the note is about the file itself.
        message: the message of the first place, if it differs from that of the first file.
    """

    file: str
    count: int
    first: tuple[str, ...]
    message: str = ""

    def __str__(self) -> str:
        times = f" ({self.count:,})" if self.count > 1 else ""
        at = ", ".join(self.first) + (", …" if self.count > len(self.first) > 0 else "")
        return ": ".join(part for part in (f"{self.file}{times}", at, self.message) if part)


class Places:
    """Counts of each kind of note and its places: the first files, each with its first places."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._files: dict[str, dict[str, list[str]]] = {}
        self._in_file: Counter[tuple[str, str]] = Counter()
        self._messages: dict[tuple[str, str], str] = {}

    def add(self, name: str, where: str, message: str = "") -> None:
        """Count a place, and keep the message of the first one in its file."""
        self.counts[name] += 1
        self.first.setdefault(name, where)
        match = _PLACE.fullmatch(where)
        assert match is not None
        files, file, place = self._files.setdefault(name, {}), match["file"], match["line"] or match["item"]
        if file in files or len(files) < FILES:
            places = files.setdefault(file, [])
            self._in_file[name, file] += 1
            self._messages.setdefault((name, file), message)
            if place and len(places) < LINES:
                places.append(place)

    def listed(self, name: str) -> tuple[Place, ...]:
        """The places of a kind."""
        files = self._files.get(name, {})
        common = next((self._messages[name, file] for file in files), "")
        return tuple(
            Place(
                file,
                self._in_file[name, file],
                tuple(places),
                message if (message := self._messages[name, file]) != common else "",
            )
            for file, places in files.items()
        )


@dataclass(frozen=True, slots=True)
class Note:
    """One kind of note of a pass.

    Attributes:
        kind: its name, a word or two.
        message: a description.
        advice: what to do.
        left_out: whether such items were left out.
        count: how often it occurred.
        where: the first place.
        places: more places.
    """

    kind: str
    message: str
    advice: str
    left_out: bool
    count: int
    where: str
    places: tuple[Place, ...]


class Notes:
    """Collects the notes of one pass over the sources.

    Attributes:
        read: number of items that were read.
        malformed: number of malformed items.
        files: number of files, including skipped ones.
        extensions: counts of the extensions of skipped files.
    """

    def __init__(self) -> None:
        self.read = self.malformed = self.files = 0
        self.extensions: Counter[str] = Counter()
        self._places = Places()
        self._texts: dict[str, tuple[str, str, bool]] = {}

    def add(self, kind: str, where: str, message: str, advice: str, left_out: bool = True) -> None:
        """Add a note."""
        self._texts.setdefault(kind, (message, advice, left_out))
        self._places.add(kind, where, message)

    def other_files(self, folder: Path, files: Iterable[Path]) -> None:
        """Count skipped files of a folder."""
        for file in files:
            self.extensions[file.suffix.lower() or "no extension"] += 1
            self._places.add(OTHER, str(file))
        if self.extensions:
            message = f"files in folders have extensions that are not read: {self.kinds()}"
            advice = f"to read them, name them by a pattern, such as '{folder}/**/*{self.pattern()}'"
            self._texts[OTHER] = (message, advice, True)

    def kinds(self) -> str:
        """The extensions of skipped files, the most frequent first."""
        listed = [f"{count:,} {extension}" for extension, count in self.extensions.most_common(KINDS)]
        rest = sum(self.extensions.values()) - sum(count for _, count in self.extensions.most_common(KINDS))
        return ", ".join([*listed, *([f"{rest:,} others"] if rest else [])])

    def pattern(self) -> str:
        """The most frequent extension of skipped files."""
        return next((each for each, _ in self.extensions.most_common() if each.startswith(".")), ".py")

    @property
    def left_out(self) -> dict[str, int]:
        """How many items were left out, by kind, without skipped files."""
        return {note.kind: note.count for note in self if note.left_out and note.kind != OTHER}

    def __iter__(self) -> Iterator[Note]:
        for kind, count in self._places.counts.items():
            where = self._places.first[kind]
            yield Note(kind, *self._texts[kind], count, where, self._places.listed(kind))

    def lines(self) -> list[str]:
        """The lines that a user sees before training."""
        lines = []
        for note in self:
            if note.kind == OTHER:
                lines.append(f"{note.count:,} of {self.files:,} {note.message}; {note.advice}")
            elif not note.left_out:
                lines.append(f"{note.kind}: {note.count:,}, first {note.where} ({note.message}); {note.advice}")
        if left_out := self.left_out:
            total = sum(left_out.values())
            first = {note.kind: note.where for note in self}
            kinds = "; ".join(f"{kind}: {count:,}, first {first[kind]}" for kind, count in left_out.items())
            lines.append(f"left out: {total:,} of {pluralize(self.read + self.malformed, 'item')} ({kinds})")
        return lines


@dataclass(frozen=True)
class Reader:
    """How files are read, and the notes of one pass.

    Attributes:
        encoding: encoding of text files.
        skips: which malformed items are left out instead of raising an error: `none`; `items`, those that put nothing else in
            doubt; or `all`, to count them.
        unlabelled: labels that mean that a record has no label.
        notes: the notes of the pass.
    """

    encoding: str = "utf-8"
    skips: Literal["none", "items", "all"] = "none"
    unlabelled: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)

    def skip(self, error: MalformedError) -> None:
        """Leave out a malformed item and count it.

        Raises:
            MalformedError: the item must not be left out.
        """
        if self.skips == "none" or (error.doubtful and self.skips == "items"):
            raise error
        self.notes.malformed += 1
        self.notes.add(error.kind, error.where, error.fault, error.advice)

    @contextmanager
    def skip_malformed(self) -> Iterator[None]:
        """Skip the rest of the block if it raises a `MalformedError` that may be left out."""
        try:
            yield
        except MalformedError as error:
            self.skip(error)

    def parse_each(self, items: Iterable[Item], parse: Callable[[Item], Result]) -> Iterator[Result]:
        """Parse each item, skipping malformed ones."""
        for item in items:
            with self.skip_malformed():
                result = parse(item)
                self.notes.read += 1
                yield result
