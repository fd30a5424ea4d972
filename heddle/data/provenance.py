"""What a store was made from: source files and their hashes, the settings that decide its ids, the tokenizer's training."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heddle.display import displayed
from heddle.errors import HeddleError

_SHOWN = 3  # files named in a message


class SourceFile(NamedTuple):
    """A file as it was read.

    Attributes:
        part: `sources` or `validation_sources`.
        path: absolute; `-` for standard input.
        size: bytes.
        sha256: of its content, compressed if it is.
    """

    part: str
    path: str
    size: int
    sha256: str


@displayed()
@dataclass(frozen=True, slots=True)
class Provenance:
    """What a store was made from.

    Attributes:
        sources: the files in the order in which they were read.
        settings: the settings that decide what is read from them and what is held out, by name.
        recipe: how the tokenizer was trained on them, by setting; None if it was given.
    """

    sources: tuple[SourceFile, ...]
    settings: Mapping[str, Any]
    recipe: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**asdict(self), "sources": [each._asdict() for each in self.sources]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Provenance":
        """From what `to_dict` gave."""
        recipe = data["recipe"]
        files = tuple(SourceFile(**each) for each in data["sources"])
        return cls(files, dict(data["settings"]), None if recipe is None else dict(recipe))

    def differences(self, wanted: "Provenance") -> list[str]:
        """What another run would read differently, in words; none if it would read the same. Tokenizers are not compared."""
        return [*_settings(self.settings, wanted.settings), *_files(self.sources, wanted.sources)]


def fingerprint(files: Iterable[tuple[str, Path]], names: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """Files as they are now.

    Args:
        files: each with its part.
        names: what to call those that do not have their own name, such as standard input, by path.

    Raises:
        HeddleError: one cannot be read.
    """
    found = []
    for part, file in files:
        if not file.is_file():
            raise HeddleError(f"{file}: not a regular file")
        try:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
        except OSError as error:
            raise HeddleError(f"{file}: cannot be read: {error.strerror or error}") from error
        found.append(SourceFile(part, names.get(str(file), str(file.expanduser().absolute())), size, digest))
    return tuple(found)


def recipe_differences(ours: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[str]:
    """In which settings another run would train its tokenizer differently, in words."""
    return ["its tokenizer was given, not trained"] if ours is None else _settings(ours, wanted)


def _settings(ours: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    # As JSON, where a tuple is a list.
    pairs = {name: (json.dumps(ours.get(name)), json.dumps(wanted.get(name))) for name in {**ours, **wanted}}
    return [f"{name} = {mine} there and {other} here" for name, (mine, other) in pairs.items() if mine != other]


def _files(ours: Sequence[SourceFile], wanted: Sequence[SourceFile]) -> list[str]:
    there, here = ({(each.part, each.path): each for each in files} for files in (ours, wanted))
    groups = {
        "changed since": [each.path for key, each in here.items() if key in there and there[key] != each],
        "not read there": [each.path for key, each in here.items() if key not in there],
        "not read here": [each.path for key, each in there.items() if key not in here],
    }
    found = [f"{_names(paths)}: {what}" for what, paths in groups.items() if paths]
    return found or ([] if [*ours] == [*wanted] else ["the sources are in another order"])


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
