"""Provenance of a store: source files with checksums, the settings that decide its ids, and the tokenizer's training."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heddle.display import displayed
from heddle.errors import HeddleError

_MAX_NAMES = 3  # files named in a message


class SourceFile(NamedTuple):
    """A source file and its checksum.

    Attributes:
        part: `sources` or `validation_sources`.
        path: absolute; `-` for standard input.
        size: bytes.
        sha256: checksum of the file, before any decompression.
    """

    part: str
    path: str
    size: int
    sha256: str


@displayed()
@dataclass(frozen=True, slots=True)
class Provenance:
    """The files and settings that a store was built from.

    Attributes:
        sources: the files in the order in which they were read.
        settings: the settings that decide what is read from them and what is held out, by name.
        recipe: how the tokenizer was trained on them, by setting; None if the tokenizer was not trained on them.
    """

    sources: tuple[SourceFile, ...]
    settings: Mapping[str, Any]
    recipe: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready data."""
        return {**asdict(self), "sources": [each._asdict() for each in self.sources]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Provenance":
        """Read the output of `to_dict`."""
        recipe = data["recipe"]
        files = tuple(SourceFile(**each) for each in data["sources"])
        return cls(files, dict(data["settings"]), None if recipe is None else dict(recipe))

    def differences(self, other: "Provenance") -> list[str]:
        """A line for each difference to another provenance; tokenizers are not compared."""
        return [*_settings(self.settings, other.settings), *_files(self.sources, other.sources)]


def fingerprint(files: Iterable[tuple[str, Path]], names: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """Compute the checksums of files.

    Args:
        files: each with its part.
        names: names to record instead of some paths, such as `-` for the copy of standard input.

    Raises:
        HeddleError: a file cannot be read.
    """
    fingerprints = []
    for part, file in files:
        if not file.is_file():
            raise HeddleError(f"{file}: not a regular file")
        try:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                size = stream.tell()
        except OSError as error:
            raise HeddleError(f"{file}: cannot be read: {error.strerror or error}") from error
        fingerprints.append(SourceFile(part, names.get(str(file), str(file.expanduser().absolute())), size, digest))
    return tuple(fingerprints)


def recipe_differences(stored: Mapping[str, Any] | None, current: Mapping[str, Any]) -> list[str]:
    """A line for each setting of tokenizer training that differs."""
    return ["its tokenizer was given, not trained"] if stored is None else _settings(stored, current)


def _settings(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    # Compare as JSON, where tuples and lists are equal.
    pairs = {name: (json.dumps(stored.get(name)), json.dumps(current.get(name))) for name in {**stored, **current}}
    return [f"{name} = {there} there and {here} here" for name, (there, here) in pairs.items() if there != here]


def _files(stored: Sequence[SourceFile], current: Sequence[SourceFile]) -> list[str]:
    there, here = ({(file.part, file.path): file for file in files} for files in (stored, current))
    groups = {
        "changed since": [file.path for key, file in here.items() if key in there and there[key] != file],
        "not read there": [file.path for key, file in here.items() if key not in there],
        "not read here": [file.path for key, file in there.items() if key not in here],
    }
    changes = [f"{_names(paths)}: {change}" for change, paths in groups.items() if paths]
    return changes or ([] if [*stored] == [*current] else ["the sources are in another order"])


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMES:,} more" if len(paths) > _MAX_NAMES else ""
    return ", ".join(paths[:_MAX_NAMES]) + more
