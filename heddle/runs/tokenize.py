"""Tokenises a run's sources into a store that runs share, in pieces: resumable, by several processes and machines."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.config.run import RunConfig
from heddle.data.base import PARTS
from heddle.data.raw import RawDataset, Tell, open_dataset
from heddle.data.record_store import Store, open_store
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.runs.pieces import SUFFIX, Pieces, key_of, root_of
from heddle.runs.prepare import name_sources
from heddle.runs.resolve import Resolved, resolve
from heddle.runs.token_cache import cache_key, counts, lookup, write_store
from heddle.runs.tokenizers import train_on
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.weights.checkpoints import TOKENIZER


@displayed()
@dataclass(frozen=True)
class Tokenized:
    """What `tokenize` has done.

    Attributes:
        store: the complete store; None: only pieces were made.
        pieces: how many pieces the text has; None: the store existed.
        missing: the pieces that are still to be made.
    """

    store: Store | None
    pieces: int | None = None
    missing: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready data."""
        store = self.store
        return {
            "store": None if store is None else str(store.directory),
            "fingerprint": None if store is None else store.fingerprint(),
            "tokens": {} if store is None else {name: store.tokens(name) for name in PARTS},
            "pieces": self.pieces,
            "missing": [*self.missing],
        }

    def describe(self) -> str:
        """What was done, in one line."""
        if self.store is not None:
            return f"{self.store.directory} is complete: {counts(self.store)}"
        missing = (
            f"{len(self.missing):,} still missing" if self.missing else "all are there; without --part, it is written"
        )
        return f"{pluralize(self.pieces or 0, 'piece')} of the store: {missing}"


@checked()
def tokenize(
    config: RunConfig,
    tell: Callable[[str], None] = lambda line: None,
    part: tuple[int, int] | None = None,
    join: Sequence[str | Path] = (),
) -> Tokenized:
    """Tokenise the sources of a run into `data.store`, or make some of its pieces beside it.

    A process that was killed loses the piece that it was making; the next call makes what is missing. The store is byte for byte
    the one that a single process makes.

    Args:
        config: the settings, with `data.store`.
        tell: called with one line per phase.
        part: (i, n): make only the pieces i, i + n, i + 2 n, …, and write no store.
        join: stores with pieces beside them, or directories of pieces; write the store from these and its own, and make none.

    Raises:
        HeddleError: `data.store` is missing, or was made from something else; pieces to join are missing; or the sources cannot
            be read.
    """
    if config.data.store is None:
        raise HeddleError("name the store to write: store=DIR")
    if part is not None and not (len(part) == 2 and 0 <= part[0] < part[1]):
        raise HeddleError(f"part = {part} must be (i, n), with i from 0 to n - 1")
    if part is not None and join:
        raise HeddleError("a part makes pieces, and joining makes none: leave one of them out")
    train = config.train.model_copy(update={"device": "cpu", "tf32": False})  # it may be trained on another machine
    resolved, place = resolve(config.model_copy(update={"train": train})), Path(config.data.store)
    roots = [_existing_root(Path(each)) for each in join]
    with open_dataset(resolved.config.data, resolved.config.task) as dataset:
        tell(f"reading {name_sources(resolved.config.data)}")
        needs = cache_key(resolved, dataset)
        if lookup(resolved.config.data, needs, [], tell) is not None:
            shutil.rmtree(root_of(place), ignore_errors=True)
            return Tokenized(open_store(place))
        tell(dataset.read(tell))
        directories = tuple(root / key_of(needs) for root in (root_of(place), *roots))
        for root, directory in zip(roots, directories[1:], strict=True):
            if not directory.is_dir():
                raise HeddleError(f"{root} has no pieces of these sources, settings and tokenizer")
        tokenizer = _tokenizer(resolved, dataset, directories, tell)
        pieces = Pieces(directories, tokenizer, dataset.labels, dataset.described.bytes, part or (0, 1))
        if join:
            pieces.check()
        else:
            pieces.prepare()
        if part is not None:
            tell(f"making the pieces of part {part[0]} of {part[1]}")
            dataset.encode(tokenizer, tell, needs.provenance, pieces.in_order)
            return Tokenized(None, pieces.count, tuple(pieces.missing()))
        tell("joining pieces" if join else "cutting the text into tokens")
        _, lines = write_store(place, dataset, needs, tokenizer, tell, pieces.in_order)
        pieces.remove()
        for line in lines:
            tell(line)
        return Tokenized(open_store(place), pieces.count)


def parse_part(text: str) -> tuple[int, int]:
    """Parse `0/2`, the first of two parts.

    Raises:
        HeddleError: it is not a part.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise HeddleError(f"--part {text}: use i/n with i from 0 to n - 1, such as 0/2 and 1/2")
    return int(number), int(count)


def _existing_root(path: Path) -> Path:
    root = path if path.suffix == SUFFIX else root_of(path)
    if not root.is_dir():
        raise HeddleError(f"{root}: no such directory of pieces")
    return root


def _tokenizer(resolved: Resolved, dataset: RawDataset, directories: Sequence[Path], tell: Tell) -> Tokenizer:
    """The tokenizer that exists, that of pieces that were made before, or a new one."""
    if resolved.tokenizer is not None:
        return resolved.tokenizer
    earlier = next((each / TOKENIZER for each in directories if (each / TOKENIZER).is_file()), None)
    return train_on(dataset, resolved.config, tell) if earlier is None else load_tokenizer(earlier)
