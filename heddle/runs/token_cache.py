"""Tokens that are used again: a run takes those of a store that was made from the same sources, settings and tokenizer."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from heddle.config.data import DataConfig
from heddle.data.base import META
from heddle.data.provenance import Provenance, recipe_differences
from heddle.data.raw import RawDataset, Tell
from heddle.data.record_store import Store, open_store
from heddle.data.sources.files import STDIN
from heddle.errors import HeddleError
from heddle.runs.resolve import Resolved
from heddle.runs.tokenizers import recipe
from heddle.text.processes import InOrder, in_order
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.weights.checkpoints import TOKENIZER
from heddle.weights.files import being_written, remove_leftovers, write_directory

DATA = "data"  # where a run keeps its tokens


class Tokens(NamedTuple):
    """A store and the file of its tokenizer."""

    directory: Path
    tokenizer: Path


class CacheKey(NamedTuple):
    """What a run needs its tokens to be made from.

    Attributes:
        provenance: the sources and settings, and how the tokenizer is trained.
        tokenizer: the tokenizer that is given instead, or None.
        again: whether standard input, if it is a source, was read before, and so is not compared.
    """

    provenance: Provenance
    tokenizer: Tokenizer | None
    again: bool

    def differences(self, tokens: Tokens, sources: bool = True) -> list[str]:
        """Why the tokens of a store cannot be used, in words; none if they can.

        Args:
            tokens: the store.
            sources: whether the source files count.

        Raises:
            HeddleError: there is no such store, or it is damaged.
        """
        store = open_store(tokens.directory)
        if store.provenance is None:
            return ["it does not say what it was made from"]
        if load_tokenizer(tokens.tokenizer).fingerprint() != store.tokenizer:
            raise HeddleError(f"{tokens.tokenizer} is not the tokenizer that made the tokens in {tokens.directory}")
        files = tuple(each for each in store.provenance.sources if not (self.again and each.path in STDIN))
        differences = replace(store.provenance, sources=files if sources else self.provenance.sources).differences(
            self.provenance
        )
        if self.provenance.recipe is not None:
            return differences + recipe_differences(store.provenance.recipe, self.provenance.recipe)
        assert self.tokenizer is not None
        return differences + ["the tokenizer is another one"] * (self.tokenizer.fingerprint() != store.tokenizer)


def cache_key(resolved: Resolved, dataset: RawDataset) -> CacheKey:
    """What a run needs its tokens to be made from; reads every source for its checksum."""
    trained = recipe(resolved.config) if resolved.tokenizer is None else None
    return CacheKey(dataset.provenance(trained), resolved.tokenizer, dataset.stdin_read)


def lookup(data: DataConfig, needs: CacheKey, runs: Sequence[Path], tell: Tell) -> Tokens | None:
    """Tokens that a run can use: those of its `data.store`, if it is there, or of one of some runs.

    Raises:
        HeddleError: `data.store` was made from something else, with what differs, or is being written; or standard input was
            read by the other runs and cannot be read again.
    """
    tokens = _in_runs(needs, runs, tell) if data.store is None else _in_store(data.store, needs)
    if tokens is not None:
        size = counts(open_store(tokens.directory))
        tell(f"using the tokens of {tokens.directory}, made from the same sources, settings and tokenizer: {size}")
        return tokens
    if needs.again and any(source in STDIN for source in (*data.sources, *data.validation_sources)):
        raise HeddleError(
            "standard input was read for an earlier run, and its tokens do not suit this one: name a file"
        )
    return None


def counts(store: Store) -> str:
    """The tokens of both parts, in words."""
    return f"{store.tokens('train'):,} to learn from and {store.tokens('validation'):,} held out"


def _in_store(place: str, needs: CacheKey) -> Tokens | None:
    """The tokens of `data.store`; None if nothing is there yet."""
    tokens = Tokens(Path(place), Path(place) / TOKENIZER)
    if being_written(tokens.directory):
        raise HeddleError(f"store = {place!r} is being written by another process; wait for it to end")
    if not os.path.lexists(place):
        return None
    if differences := needs.differences(tokens):
        raise HeddleError(
            f"store = {place!r} was made from something else ({'; '.join(differences)}); name another directory, or leave it out"
        )
    open_store(tokens.directory).verify()
    return tokens


def _in_runs(needs: CacheKey, runs: Sequence[Path], tell: Tell) -> Tokens | None:
    """The tokens of the first run that has what is needed; says why those of a run with the same settings are not used."""
    for run in runs:
        tokens = Tokens(run / DATA, run / TOKENIZER)
        try:
            if not (differences := needs.differences(tokens)):
                open_store(tokens.directory).verify()
                return tokens
            if needs.differences(tokens, sources=False):
                continue  # another text or tokenizer is needed
        except HeddleError as error:
            differences = [str(error)]
        tell(f"the tokens of {run} are not used: {'; '.join(differences)}")
    return None


def link(tokens: Tokens, directory: Path) -> Store:
    """A run's own `data/` with the files of another store: linked, so that the run lasts if the other is removed.

    On another file system they are symbolic links. `meta.json`, which has the hashes, is always copied.
    """
    directory.mkdir()
    shutil.copyfile(tokens.directory / META, directory / META)
    for name in open_store(tokens.directory).files:
        _link_file(tokens.directory / name, directory / name)
    return open_store(directory)


def _link_file(file: Path, target: Path) -> None:
    # The file itself, in case it is a link.
    file = file.resolve()
    try:
        os.link(file, target)
    except OSError:  # another file system, or one without links
        target.symlink_to(file)


def make_tokens(
    data: DataConfig, dataset: RawDataset, needs: CacheKey, run: Path, tokenizer: Tokenizer, tell: Tell
) -> Store:
    """Tokenise into a run's directory, or into `data.store`, from which the run takes it."""
    tell("cutting the text into tokens")
    if data.store is None:
        store, lines = dataset.tokenize(run / DATA, tokenizer, tell, needs.provenance)
    else:
        tokens, lines = write_store(Path(data.store), dataset, needs, tokenizer, tell)
        store, lines = link(tokens, run / DATA), [*lines, f"{data.store} keeps the tokens for other runs"]
    for line in lines:
        tell(line)
    return store


def write_store(
    place: Path, dataset: RawDataset, needs: CacheKey, tokenizer: Tokenizer, tell: Tell, encoded: InOrder = in_order
) -> tuple[Tokens, list[str]]:
    """Write a store that runs share, with its tokenizer, atomically. Returns it, and lines that describe the held-out part.

    Args:
        encoded: what encodes the jobs, in order.
    """
    if place.parent.is_dir():
        remove_leftovers(place.parent)  # what a killed run left
    with write_directory(place) as partial:
        tokenizer.save(partial / TOKENIZER)
        _, lines = dataset.tokenize(partial, tokenizer, tell, needs.provenance, encoded)
    return Tokens(place, place / TOKENIZER), lines
