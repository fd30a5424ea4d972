"""The base class of token and record stores: a directory with `meta.json`, file checksums and provenance."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from heddle.checks import checked
from heddle.data.corpus import Corpus, Part
from heddle.data.provenance import Provenance
from heddle.data.records import Records
from heddle.data.token_writer import Tokenizes, settle
from heddle.errors import HeddleError

META = "meta.json"
META_PARTIAL = f"{META}.partial"
PARTS = ("train", "validation")
AnyStore = TypeVar("AnyStore", bound="BaseStore")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStore(ABC):
    """A directory of ids in two parts.

    Attributes:
        directory: path of the store.
        vocab_size: V, of the tokenizer that wrote the store.
        tokenizer: that tokenizer's fingerprint.
        sources: SHA-256 of the texts or records.
        split: what was held out.
        provenance: the files and settings that it was built from, or None if it was not built from files.
        files: SHA-256 of each file, by name.
        left_out: how many malformed items of the sources were left out, by kind of fault.
        train: the training part, mapped from the files, read-only.
        validation: the part to score.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    WHAT: ClassVar[str]  # in messages

    directory: Path
    vocab_size: int
    tokenizer: str
    sources: str
    split: dict[str, Any]
    train: Part | Records
    validation: Part | Records
    provenance: Provenance | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def corpus(self) -> Corpus:
        """Both parts, as a task reads them."""
        return Corpus(self.train, self.validation)

    @classmethod
    @checked()
    def open(cls: type[AnyStore], directory: str | Path) -> AnyStore:
        """Open an existing store, mapping its files.

        Raises:
            HeddleError: there is no store, it has another format or version, or a file does not have the size in `meta.json`.
        """
        directory = Path(directory)
        path, meta = directory / META, read_meta(directory)
        if meta.get("format") != cls.FORMAT:
            raise HeddleError(f"{path}: not the description of a heddle {cls.WHAT}; build the store again")
        if meta.get("version") != cls.VERSION:
            raise HeddleError(
                f"{path}: format version {meta.get('version')}, but this heddle reads version {cls.VERSION}; "
                "build the store again"
            )
        try:
            checksums, provenance = {name: str(meta["files"][name]) for name in cls._names(meta)}, meta["provenance"]
            for name in checksums:
                _check_link(directory / name)
            return cls(
                directory=directory,
                vocab_size=meta["vocab_size"],
                tokenizer=meta["tokenizer"],
                sources=meta["sources"]["sha256"],
                split=dict(meta["split"]),
                provenance=None if provenance is None else Provenance.of(provenance),
                files=checksums,
                left_out=dict(meta["left_out"]),
                **cls._content(directory, meta),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise HeddleError(f"{path}: damaged ({type(error).__name__}: {error}); build the store again") from error

    @classmethod
    def heading(
        cls,
        tokenizer: Tokenizes,
        provenance: Provenance | None,
        files: Iterable[Mapping[str, str]],
        left_out: Mapping[str, int] | None,
    ) -> dict[str, Any]:
        """The entries that the `meta.json` of every store has.

        Args:
            tokenizer: the tokenizer of the ids.
            provenance: the files and settings that they come from, or None.
            files: SHA-256 of files, by name.
            left_out: how many malformed items were left out, by kind of fault.
        """
        return {
            "format": cls.FORMAT,
            "version": cls.VERSION,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.fingerprint(),
            "provenance": None if provenance is None else provenance.to_dict(),
            "left_out": dict(left_out or {}),
            "files": {name: digest for each in files for name, digest in each.items()},
        }

    @classmethod
    @abstractmethod
    def _names(cls, meta: Mapping[str, Any]) -> list[str]:
        """The names of the store's files."""

    @classmethod
    @abstractmethod
    def _content(cls, directory: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of this kind of store, including its mapped files."""

    @abstractmethod
    def tokens(self, part: str) -> int:
        """How many tokens a part has."""

    def fingerprint(self) -> str:
        """SHA-256 of what the store holds, from the checksums in `meta.json`: equal for equal stores, wherever they lie."""
        content = [self.FORMAT, self.VERSION, self.vocab_size, self.tokenizer, self.sources, sorted(self.files.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def verify(self, *parts: str) -> None:
        """Compare the files of these parts, or of both, with their checksums in `meta.json`.

        Raises:
            HeddleError: a file has changed.
        """
        for name, checksum in self.files.items():
            if not parts or name.partition(".")[0] in parts:
                file = self.directory / name
                with file.open("rb") as stream:
                    if hashlib.file_digest(stream, "sha256").hexdigest() != checksum:
                        raise HeddleError(f"{file}: damaged, checksum mismatch; restore the file or train a new run")


def _check_link(file: Path) -> None:
    """Refuse a link to a deleted file of another store."""
    if file.is_symlink() and not file.exists():
        raise HeddleError(f"{file}: links to {file.readlink()}, which is gone; restore that store or train a new run")


def read_meta(directory: Path) -> dict[str, Any]:
    """Read the `meta.json` of a store of either kind."""
    path = directory / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"{directory}: not a token store ({META}: {error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise HeddleError(f"{path}: damaged, not JSON; build the store again") from error
    if not isinstance(meta, dict):
        raise HeddleError(f"{path}: not the description of a heddle token store; build the store again")
    return meta


def write_meta(path: Path, meta: dict[str, Any]) -> None:
    """Write a store's `meta.json` atomically."""
    partial = path.with_name(META_PARTIAL)
    with partial.open("wb") as stream:
        stream.write((json.dumps(meta, indent=2) + "\n").encode())
        settle(stream)
    partial.rename(path)


def check_new(directory: Path, validation: float | None) -> None:
    """Refuse to overwrite a store, or to hold out a share outside (0, 1)."""
    if validation is not None and not 0 < validation < 1:
        raise HeddleError(f"validation must be between 0 and 1, both excluded, not {validation}")
    if (directory / META).exists():
        raise HeddleError(f"{directory}: a store already exists here; delete it or choose another directory")


@contextmanager
def cleared_on_error(directory: Path, what: str) -> Iterator[None]:
    """Create `directory`; on an error, remove the partial store and report the system's error."""
    existed = directory.exists()
    old_files = set(directory.iterdir()) if directory.is_dir() else set()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for file in [directory / META_PARTIAL, *(file for part in PARTS for file in directory.glob(f"{part}.*"))]:
            if file not in old_files:
                with suppress(OSError):
                    file.unlink()
        if not existed:
            with suppress(OSError):
                directory.rmdir()
        if isinstance(error, OSError):
            raise HeddleError(f"cannot write the {what} {directory}: {error.strerror or error}") from error
        raise
