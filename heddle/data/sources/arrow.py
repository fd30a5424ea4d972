"""Parquet and Arrow files, and Hugging Face datasets made of them; needs the packages pyarrow and datasets."""

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from heddle.data.sources.notes import MalformedError
from heddle.errors import HeddleError, did_you_mean

ARROW = (".parquet", ".arrow")
HUB = "hf:"
"""What a dataset's name starts with, such as `hf:owner/name`, `hf:owner/name:config` or `hf:owner/name#split`."""

_SPLITS, _STATE = "dataset_dict.json", "state.json"
_PATIENCE = 3.0  # seconds to wait for the hub
_ROWS = 1024  # rows in memory at once


def arrow_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or Arrow file, by column. Class numbers become names if the file has the names.

    Raises:
        HeddleError: pyarrow is missing.
        MalformedError: the file is damaged.
    """
    arrow, parquet = package("pyarrow", file), package("pyarrow.parquet", file)
    try:
        if file.suffix.lower() == ".parquet":
            with parquet.ParquetFile(file) as opened:
                names = _class_names(opened.schema_arrow)
                for batch in opened.iter_batches(_ROWS):
                    yield from _named(batch, names)
            return
        with arrow.memory_map(str(file)) as stream:
            try:
                reader = arrow.ipc.open_stream(stream)
                batches = iter(reader)
            except arrow.ArrowInvalid:
                reader = arrow.ipc.open_file(stream)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            names = _class_names(reader.schema)
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    yield from _named(batch.slice(start, _ROWS), names)
    except (arrow.ArrowException, OSError) as error:
        raise MalformedError("damaged", file, f"cannot be read: {' '.join(str(error).split())}") from error


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The class names by column, from the metadata that the library datasets writes into a file."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    except (TypeError, KeyError, ValueError):
        return {}
    names_by_column = {}
    for column, feature in features.items():
        item_feature = feature.get("feature", feature) if isinstance(feature, Mapping) else {}
        if isinstance(item_feature, Mapping) and item_feature.get("_type") == "ClassLabel":
            names_by_column[column] = list(item_feature["names"])
    return names_by_column


def _named(batch: Any, names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        for column, classes in names.items():
            row[column] = named_class(row[column], classes)
        yield row


def named_class(value: Any, classes: Sequence[str]) -> Any:
    """The name of a numbered class, or of each in a list; None for -1 and None, which mean that there is no label."""
    if isinstance(value, list):
        return [named_class(each, classes) for each in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None


def is_dataset(source: str | Path) -> bool:
    """Whether a source is the name of a dataset, or a folder written by `save_to_disk`."""
    return str(source).startswith(HUB) or any(
        (Path(source).expanduser() / name).is_file() for name in (_SPLITS, _STATE)
    )


def splits_of(source: str | Path) -> dict[str, list[Path]]:
    """The Arrow files of each split of a dataset; a dataset without splits has `train`.

    Raises:
        HeddleError: the library datasets is missing, or there is no such dataset, or no network.
    """
    if str(source).startswith(HUB):
        return _from_hub(str(source).removeprefix(HUB))
    folder = Path(source).expanduser()
    if (folder / _STATE).is_file():
        return {"train": _saved(folder)}
    return {split: _saved(folder / split) for split in _read(folder / _SPLITS, "splits")}


def dataset_files(source: str | Path) -> list[Path]:
    """The Arrow files of the split that a source names after `#`, or of `train`.

    Raises:
        HeddleError: there is no such split.
    """
    name, _, chosen = str(source).partition("#")
    splits, split = splits_of(name), chosen or "train"
    if split not in splits:
        available = ", ".join(splits)
        raise HeddleError(f"{name} has no split {split!r}; there are: {available}.{did_you_mean(split, splits)}")
    return splits[split]


def _saved(folder: Path) -> list[Path]:
    return [folder / entry["filename"] for entry in _read(folder / _STATE, "_data_files")]


def _read(file: Path, key: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeddleError(f"{file}: not what save_to_disk of the library datasets writes") from error


def _from_hub(name: str) -> dict[str, list[Path]]:
    """Download a dataset by name, or find it in the cache."""
    path, _, config = name.partition(":")
    if "datasets" not in sys.modules and find_spec("datasets") is None:
        raise _missing("datasets", HUB + name)
    # Without a network, the library retries for half a minute before it fails.
    online = _online()
    if not online and "datasets" not in sys.modules:
        os.environ["HF_HUB_OFFLINE"] = "1"
    library = package("datasets", HUB + name)
    library.disable_progress_bars()
    try:
        if not online and not library.config.HF_HUB_OFFLINE:
            raise ConnectionError("no network")
        splits = library.load_dataset(path, config or None)
    except Exception as error:  # the library raises many kinds
        message = " ".join(str(error).split()) or type(error).__name__
        reason = message if online else "the hub cannot be reached, and it was not downloaded before"
        raise HeddleError(f"{HUB}{name}: {reason}") from error
    return {split: [Path(each["filename"]) for each in part.cache_files] for split, part in splits.items()}


def _online() -> bool:
    """Whether the hub can be reached. Behind a proxy, only a real request can tell, so the answer is True."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((host.hostname or "", host.port or 443), timeout=_PATIENCE).close()
    except OSError:
        return False
    return True


def package(name: str, what: str | Path) -> Any:
    """Import an optional package.

    Raises:
        HeddleError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise _missing(name.partition(".")[0], what) from None


def _missing(package: str, what: str | Path) -> HeddleError:
    return HeddleError(f'{what}: reading it needs the package {package}: pip install "heddle-lm[data]"')
