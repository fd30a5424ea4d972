"""What reading meets beside the items that it gives: what is malformed, files of other kinds, and what looks wrong; and where."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from heddle.errors import HeddleError, pluralize

FILES, LINES = 100, 5  # what is listed of one kind: so many files, and the first places in each
KINDS = 4  # extensions of other files that are listed
OTHER = "other files"

_PLACE = re.compile(r"(?P<file>.*?)(?::(?P<line>\d+)| (?P<item>item \d+))?", re.DOTALL)
Item = TypeVar("Item")
Made = TypeVar("Made")


class MalformedError(HeddleError):
    """An item of a source, or the rest of a file, that cannot be read.

    Args:
        kind: what is wrong in a word or two, the same for all that have it.
        where: the place: a path, or `path:line`.
        fault: what is wrong with it, to follow the place.
        advice: what to do.
        doubtful: whether it puts all other items in doubt, so that it must not be skipped.
    """

    def __init__(self, kind: str, where: str | Path, fault: str, advice: str = "", doubtful: bool = False) -> None:
        super().__init__(f"{where}: {fault}{'; ' if advice else ''}{advice}")
        self.kind, self.where, self.fault, self.advice, self.doubtful = kind, str(where), fault, advice, doubtful


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is in one file.

    Attributes:
        file: the file; empty for items of a list.
        count: how often.
        first: the first places in it: lines or items; none if it is the file as a whole.
        said: what is wrong with the first, if it is not what is said of all.
    """

    file: str
    count: int
    first: tuple[str, ...]
    said: str = ""

    def __str__(self) -> str:
        times = f" ({self.count:,})" if self.count > 1 else ""
        at = ", ".join(self.first) + (", …" if self.count > len(self.first) > 0 else "")
        return ": ".join(part for part in (f"{self.file}{times}", at, self.said) if part)


class Places:
    """How often each kind of thing was met, and where: the first files, each with its first places."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._files: dict[str, dict[str, list[str]]] = {}
        self._in_file: Counter[tuple[str, str]] = Counter()
        self._said: dict[tuple[str, str], str] = {}

    def add(self, name: str, where: str, said: str = "") -> None:
        """Count one, and remember what is said of the first in its file."""
        self.counts[name] += 1
        self.first.setdefault(name, where)
        found = _PLACE.fullmatch(where)
        assert found is not None
        files, file, place = self._files.setdefault(name, {}), found["file"], found["line"] or found["item"]
        if file in files or len(files) < FILES:
            places = files.setdefault(file, [])
            self._in_file[name, file] += 1
            self._said.setdefault((name, file), said)
            if place and len(places) < LINES:
                places.append(place)

    def listed(self, name: str) -> tuple[Place, ...]:
        """The places of a kind."""
        files = self._files.get(name, {})
        of_all = next((self._said[name, file] for file in files), "")
        return tuple(
            Place(
                file,
                self._in_file[name, file],
                tuple(places),
                said if (said := self._said[name, file]) != of_all else "",
            )
            for file, places in files.items()
        )


@dataclass(frozen=True, slots=True)
class Note:
    """A kind of thing that reading met.

    Attributes:
        kind: what, in a word or two.
        said: what it is, in words.
        advice: what to do.
        left_out: whether it was left out.
        count: how often.
        where: the first place.
        places: more places.
    """

    kind: str
    said: str
    advice: str
    left_out: bool
    count: int
    where: str
    places: tuple[Place, ...]


class Notes:
    """Collects what one reading of the sources meets.

    Attributes:
        read: items that were read.
        malformed: items that were not, since they are malformed.
        files: files that were found, those of other kinds included.
    """

    def __init__(self) -> None:
        self.read = self.malformed = self.files = 0
        self.extensions: Counter[str] = Counter()  # of the files of other kinds
        self._places = Places()
        self._words: dict[str, tuple[str, str, bool]] = {}

    def add(self, kind: str, where: str, said: str, advice: str, left_out: bool = True) -> None:
        """Count one thing."""
        self._words.setdefault(kind, (said, advice, left_out))
        self._places.add(kind, where, said)

    def other_files(self, folder: Path, files: Iterable[Path]) -> None:
        """Count files of a folder that are not read."""
        for file in files:
            self.extensions[file.suffix.lower() or "no extension"] += 1
            self._places.add(OTHER, str(file))
        if self.extensions:
            said = f"files of folders are of kinds that are not read from them: {self.kinds()}"
            advice = f"name them by a pattern to read them, such as '{folder}/**/*{self.pattern()}'"
            self._words[OTHER] = (said, advice, True)

    def kinds(self) -> str:
        """The extensions of the files of other kinds, the most frequent first."""
        shown = [f"{count:,} {extension}" for extension, count in self.extensions.most_common(KINDS)]
        more = sum(self.extensions.values()) - sum(count for _, count in self.extensions.most_common(KINDS))
        return ", ".join([*shown, *([f"{more:,} others"] if more else [])])

    def pattern(self) -> str:
        """The most frequent extension of the files of other kinds."""
        return next((each for each, _ in self.extensions.most_common() if each.startswith(".")), ".py")

    @property
    def left_out(self) -> dict[str, int]:
        """How many items were left out, by kind; files of other kinds do not count."""
        return {note.kind: note.count for note in self if note.left_out and note.kind != OTHER}

    def __iter__(self) -> Iterator[Note]:
        for kind, count in self._places.counts.items():
            where = self._places.first[kind]
            yield Note(kind, *self._words[kind], count, where, self._places.listed(kind))

    def lines(self) -> list[str]:
        """What a user is told before training, in a line each."""
        lines = []
        for note in self:
            if note.kind == OTHER:
                lines.append(f"{note.count:,} of {self.files:,} {note.said}; {note.advice}")
            elif not note.left_out:
                lines.append(f"{note.kind}: {note.count:,}, first {note.where} ({note.said}); {note.advice}")
        if left := self.left_out:
            total = sum(left.values())
            first = {note.kind: note.where for note in self}
            kinds = "; ".join(f"{kind}: {count:,}, first {first[kind]}" for kind, count in left.items())
            lines.append(f"left out: {total:,} of {pluralize(self.read + self.malformed, 'item')} ({kinds})")
        return lines


@dataclass(frozen=True)
class Reader:
    """How files are read, and what one reading of them met.

    Attributes:
        encoding: of text files.
        skips: which malformed items are left out instead of stopping everything: none; `items`, those that put nothing else in
            doubt; or all, to count them.
        unlabelled: labels that mean that a record has none.
        notes: what was met.
    """

    encoding: str = "utf-8"
    skips: Literal["none", "items", "all"] = "none"
    unlabelled: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)

    def refuse(self, error: MalformedError) -> None:
        """Leave something malformed out, and count it.

        Raises:
            MalformedError: it may not be left out.
        """
        if self.skips == "none" or (error.doubtful and self.skips == "items"):
            raise error
        self.notes.malformed += 1
        self.notes.add(error.kind, error.where, error.fault, error.advice)

    @contextmanager
    def file(self) -> Iterator[None]:
        """What is malformed inside ends the file that is read there."""
        try:
            yield
        except MalformedError as error:
            self.refuse(error)

    def each(self, items: Iterable[Item], make: Callable[[Item], Made]) -> Iterator[Made]:
        """What is made of each item, without those of which nothing can be made."""
        for item in items:
            with self.file():
                made = make(item)
                self.notes.read += 1
                yield made
