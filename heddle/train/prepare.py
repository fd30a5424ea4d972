"""From text to a run directory that a `Trainer` can take up: tokenizer, token store, sizes, and a check of what will work."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from heddle.config.run import DataConfig, RunConfig, SavedConfig
from heddle.data.sources import Description, describe, python_library, read_documents
from heddle.data.store import build_store
from heddle.errors import HeddleError
from heddle.model.device import pick_device
from heddle.text.base import Kind
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from heddle.train.plan import CONTEXT, DEPTHS, Plan, plan
from heddle.weights.files import sweep, write_directory

TRAINABLE = get_args(Kind)
Tell = Callable[[str], None]


def prepare(config: RunConfig, run: Path, tell: Tell = lambda line: None) -> Plan:
    """Make the directory of a new run, whole or not at all, and return what will happen in it.

    Args:
        config: what the user said.
        run: where; it must not exist.
        tell: hears one line about each phase.

    Raises:
        HeddleError: the text cannot be read, the run exists, or what was asked for cannot work.
    """
    if run.exists():
        raise HeddleError(f"{run} already exists: go on with `heddle train --resume {run}`, or choose another --name")
    device = pick_device(config.train.device)
    config.model.resolve(config.data.tokenizer_size, min(DEPTHS), CONTEXT)  # refuses impossible sizes before any work
    sources = resolve_sources(config.data)
    if run.parent.is_dir():
        sweep(run.parent)
    tell(f"reading {name_sources(config.data)}")
    described = describe(sources)
    tell(f"{described.documents:,} documents, {described.bytes / 1e6:,.1f} MB")
    with write_directory(run) as partial:
        tokenizer = make_tokenizer(config.data, sources, described, tell)
        tokenizer.save(partial / "tokenizer.json")
        tell("cutting the text into tokens")
        several = described.documents > 1 and tokenizer.end_of_text is not None
        store = build_store(partial / "data", read_documents(sources), tokenizer, config.data.validation, several)
        tell("measuring this machine")
        planned = plan(config, store, device.type)
        saved = SavedConfig(model=planned.model, data=config.data, train=config.train, chosen=planned.chosen)
        (partial / "config.json").write_text(saved.to_json(), encoding="utf-8")
    return planned


def resolve_sources(data: DataConfig) -> list[Path | str]:
    """What to read: the user's sources, or the Python standard library's."""
    return list(data.sources) if data.sources else list(python_library())


def name_sources(data: DataConfig) -> str:
    """The sources, as one would say them."""
    return ", ".join(data.sources) if data.sources else "the Python standard library's sources on this machine"


def make_tokenizer(data: DataConfig, sources: Iterable[Path | str], described: Description, tell: Tell) -> Tokenizer:
    """The tokenizer a config asks for: trained on the text, or loaded from a file or a run.

    Raises:
        HeddleError: it names neither a kind nor a file.
    """
    if data.tokenizer in TRAINABLE:
        tell(f"training a tokenizer ({data.tokenizer})")
        # One document has no boundary to mark; a character vocabulary then holds exactly the text's characters.
        whole = data.tokenizer == "characters" and described.documents == 1
        special: tuple[str, ...] = () if whole else (END_OF_TEXT,)
        special += data.special_tokens
        texts = (document.text for document in read_documents(list(sources)))
        return train_tokenizer(data.tokenizer, texts, data.tokenizer_size, special)
    if not Path(data.tokenizer).exists():
        kinds = ", ".join(TRAINABLE)
        raise HeddleError(f"tokenizer = {data.tokenizer!r} is neither one of {kinds} nor the path of a tokenizer.json")
    return load_tokenizer(Path(data.tokenizer))
