"""Tokens that are used again: a run takes those of a store that was made from the same sources, settings and tokenizer."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from heddle.config.run import RunConfig
from heddle.config.tasks import ChatConfig
from heddle.data.base import META
from heddle.data.provenance import Provenance, recipe_differences
from heddle.data.raw import RawDataset, Tell
from heddle.data.record_store import Store, open_store
from heddle.data.sources.files import STDIN
from heddle.errors import HeddleError
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import Tokenizer, add_special_tokens, load_tokenizer
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

    def differences(self, found: Tokens, sources: bool = True) -> list[str]:
        """Why the tokens of a store cannot be used, in words; none if they can.

        Args:
            found: the store.
            sources: whether the source files count.

        Raises:
            HeddleError: there is no such store, or it is damaged.
        """
        store = open_store(found.directory)
        if store.provenance is None:
            return ["it does not say what it was made from"]
        if load_tokenizer(found.tokenizer).fingerprint() != store.tokenizer:
            raise HeddleError(f"{found.tokenizer} is not the tokenizer that made the tokens in {found.directory}")
        files = tuple(each for each in store.provenance.sources if not (self.again and each.path in STDIN))
        said = replace(store.provenance, sources=files if sources else self.provenance.sources).differences(
            self.provenance
        )
        if self.provenance.recipe is not None:
            return said + recipe_differences(store.provenance.recipe, self.provenance.recipe)
        assert self.tokenizer is not None
        return said + ["the tokenizer is another one"] * (self.tokenizer.fingerprint() != store.tokenizer)


def start_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer of the run to start from or of the file that is named, with the special tokens of heddle's chat template if the
    task needs them; None: one is trained on the text.

    Raises:
        HeddleError: `tokenizer` names neither a kind nor a file.
    """
    found = read_tokenizer(config)
    if found is None or not isinstance(config.task, ChatConfig):
        return found
    return add_special_tokens(found, (*config.task.needed_tokens(), *config.data.special_tokens))


def read_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer of the run to start from or of the file that is named, as it is."""
    data, start = config.data, config.model.start
    if start is not None and (Path(start) / TOKENIZER).is_file():
        return load_tokenizer(Path(start) / TOKENIZER)
    if data.tokenizer in KINDS:
        return None
    if not Path(data.tokenizer).exists():
        kinds = ", ".join(KINDS)
        raise HeddleError(f"tokenizer = {data.tokenizer!r} is neither one of {kinds} nor the path of a tokenizer.json")
    return load_tokenizer(Path(data.tokenizer))


def check_tokenizer(config: RunConfig) -> None:
    """Refuse settings of a tokenizer that is trained where it is given, or where the text alone decides.

    Raises:
        HeddleError: a setting would have no effect.
    """
    data, given = config.data, start_tokenizer(config)
    asked = data.tokenizer_size != type(data).model_fields["tokenizer_size"].default
    if asked and (given is not None or recipe(config)["tokenizer_size"] is None):
        why = f"{data.tokenizer} have as many ids as there are" if given is None else "the tokenizer is given"
        raise HeddleError(f"tokenizer_size = {data.tokenizer_size} has no effect, since {why}: leave it out")
    if given is not None and (new := [name for name in data.special_tokens if name not in given.special]):
        raise HeddleError(
            f"special_tokens = {', '.join(new)}: the tokenizer is given and has no such token; leave them out, or add them to it "
            "with heddle.text.add_special_tokens"
        )


def recipe(config: RunConfig) -> dict[str, Any]:
    """How a tokenizer is trained for a run, by setting."""
    data = config.data
    special = dict.fromkeys((*config.task.special_tokens, *data.special_tokens))
    sized = next(kind.min_vocab_size for name, kind in KINDS.items() if name == data.tokenizer) is not None
    return {
        "tokenizer": data.tokenizer,
        "tokenizer_size": data.tokenizer_size if sized else None,
        "special_tokens": [*special],
    }


def cache_key(config: RunConfig, found: RawDataset) -> CacheKey:
    """What a run needs its tokens to be made from; reads every source for its hash."""
    given = start_tokenizer(config)
    return CacheKey(found.provenance(recipe(config) if given is None else None), given, found.again)


def lookup(config: RunConfig, needs: CacheKey, runs: Sequence[Path], tell: Tell) -> Tokens | None:
    """Tokens that a run can use: those of its `data.store`, if it is there, or of one of some runs.

    Raises:
        HeddleError: `data.store` was made from something else, with what differs, or is being written; or standard input was
            read by the other runs and cannot be read again.
    """
    found = _in_runs(needs, runs, tell) if config.data.store is None else _in_store(config.data.store, needs)
    if found is not None:
        store = open_store(found.directory)
        counts = f"{store.tokens('train'):,} to learn from and {store.tokens('validation'):,} held out"
        tell(f"using the tokens of {found.directory}, made from the same sources, settings and tokenizer: {counts}")
        return found
    if needs.again and any(source in STDIN for source in (*config.data.sources, *config.data.validation_sources)):
        raise HeddleError(
            "standard input was read for an earlier run, and its tokens do not suit this one: name a file"
        )
    return None


def _in_store(place: str, needs: CacheKey) -> Tokens | None:
    """The tokens of `data.store`; None if nothing is there yet."""
    found = Tokens(Path(place), Path(place) / TOKENIZER)
    if being_written(found.directory):
        raise HeddleError(f"store = {place!r} is being written by another process; wait for it to end")
    if not os.path.lexists(place):
        return None
    if said := needs.differences(found):
        raise HeddleError(
            f"store = {place!r} was made from something else ({'; '.join(said)}); name another directory, or leave it out"
        )
    open_store(found.directory).verify()
    return found


def _in_runs(needs: CacheKey, runs: Sequence[Path], tell: Tell) -> Tokens | None:
    """The tokens of the first run that has what is needed; says why those of a run with the same settings are not used."""
    for run in runs:
        found = Tokens(run / DATA, run / TOKENIZER)
        try:
            if not (said := needs.differences(found)):
                open_store(found.directory).verify()
                return found
            if needs.differences(found, sources=False):
                continue  # another text or tokenizer was asked for
        except HeddleError as error:
            said = [str(error)]
        tell(f"the tokens of {run} are not used: {'; '.join(said)}")
    return None


def link(found: Tokens, directory: Path) -> Store:
    """A run's own `data/` with the files of another store: linked, so that the run lasts if the other is removed.

    On another file system they are symbolic links. `meta.json`, which has the hashes, is always copied.
    """
    directory.mkdir()
    shutil.copyfile(found.directory / META, directory / META)
    for name in open_store(found.directory).files:
        _link_file(found.directory / name, directory / name)
    return open_store(directory)


def _link_file(file: Path, target: Path) -> None:
    # The file itself, in case it is a link.
    file = file.resolve()
    try:
        os.link(file, target)
    except OSError:  # another file system, or one without links
        target.symlink_to(file)


def make_tokens(
    config: RunConfig, found: RawDataset, needs: CacheKey, run: Path, tokenizer: Tokenizer, tell: Tell
) -> Store:
    """Tokenise into a run's directory, or into `data.store`, from which the run takes it."""
    place, run = config.data.store, run / DATA
    tell("cutting the text into tokens")
    if place is None:
        store, said = found.tokenize(run, tokenizer, tell, needs.provenance)
    else:
        shared = Tokens(Path(place), Path(place) / TOKENIZER)
        if shared.directory.parent.is_dir():
            remove_leftovers(shared.directory.parent)  # what a killed run left
        with write_directory(shared.directory) as partial:
            tokenizer.save(partial / TOKENIZER)
            _, said = found.tokenize(partial, tokenizer, tell, needs.provenance)
        store, said = link(shared, run), [*said, f"{place} keeps the tokens for other runs"]
    for line in said:
        tell(line)
    return store
