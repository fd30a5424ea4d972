"""Checkpoints: `checkpoints/step-N` of a run, each a complete run with its training state.

Of a model that several processes divide among them, a checkpoint has their shards: `model-rank-R.safetensors` in place of
`model.safetensors`, for each process R, and so on. Any number of processes reads them, also one.
"""

import json
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heddle.checks import SOME, at_least, checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.weights.files import Entry, remove_leftovers, verify, write_directory, write_manifest
from heddle.weights.tensors import Weights, save_tensors

MODEL = "model.safetensors"
ADAPTER = "adapter.safetensors"  # instead of the model in a checkpoint, next to the model in a run
OPTIMIZER = "optimizer.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
STATE = "state.json"
CHECKPOINTS = "checkpoints"
SUFFIX = ".safetensors"
_STEP = re.compile(r"step-(\d+)")


@displayed()
class CheckpointState(NamedTuple):
    """The state from which training resumes: `model, optimizer, state = read_state(checkpoint)`."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


class SavedState(NamedTuple):
    """The same, with tensors that are read on access."""

    model: Weights
    optimizer: Weights
    state: dict[str, Any]


@checked(step=at_least(0), keep=at_least(0), model_tensors=SOME)
def save_checkpoint(
    run: str | Path,
    step: int,
    model_tensors: Mapping[str, Tensor],
    optimizer_tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int,
    also: Collection[int] = (),
    full: bool = True,
) -> Path:
    """Write `checkpoints/step-N` of a run, then remove all except the newest `keep` and those of the steps in `also`.

    The directory is written atomically, and older ones are removed only after it is in place. It replaces a checkpoint of the same
    step. Files left behind by killed writers are removed.

    Args:
        state: JSON-ready data that `read_state` returns with the tensors.
        full: whether these are all tensors of the model; otherwise, only those that differ from the weights it started from.

    Raises:
        HeddleError: the run has no config yet, or the disk is full or cannot be written. Nothing is changed then.
    """
    with fill_checkpoint(Path(run), step, state, keep, also) as directory:
        save_tensors(directory / (MODEL if full else ADAPTER), model_tensors, {"format": "pt"})
        save_tensors(directory / OPTIMIZER, optimizer_tensors)
    return Path(run) / CHECKPOINTS / f"step-{step}"


@contextmanager
def fill_checkpoint(
    run: Path,
    step: int,
    state: Mapping[str, Any],
    keep: int,
    also: Collection[int] = (),
    known: Mapping[str, Entry] | None = None,
) -> Iterator[Path]:
    """Write a checkpoint: fill the yielded directory with tensors; the rest is as in `save_checkpoint`.

    Args:
        known: entries of the manifest that need not be computed; the `with` block may add to it.
    """
    if not (run / CONFIG).is_file():
        raise HeddleError(f"{run}: has no {CONFIG}, so it is not a run and cannot have checkpoints")
    target = run / CHECKPOINTS / f"step-{step}"
    if target.parent.is_dir():
        remove_leftovers(target.parent)
    with write_directory(target, replace=True) as directory:
        yield directory
        (directory / STATE).write_text(json.dumps(dict(state), indent=2) + "\n", encoding="utf-8")
        # With these files, a checkpoint is a complete run wherever it is copied.
        for name in (CONFIG, TOKENIZER):
            if (run / name).is_file():
                shutil.copyfile(run / name, directory / name)
        write_manifest(directory, {"step": step}, known)
    # A run that was rewound may have checkpoints of later steps. The new checkpoint always stays.
    older = [(number, path) for number, path in checkpoints(run) if path != target]
    for number, path in older[max(keep, 1) - 1 :]:
        if number not in also:
            discard(path)


def shard_name(name: str, rank: int | str) -> str:
    """The file with what process `rank` has of the tensors in `name`; `*` matches those of all processes."""
    return f"{name.removesuffix(SUFFIX)}-rank-{rank}{SUFFIX}"


def files_of(directory: Path, name: str) -> list[Path]:
    """The file `name` or, if several processes wrote it, its shards."""
    return sorted(directory.glob(shard_name(name, "*"))) or [directory / name]


def weights_name(directory: Path) -> str:
    """The name of the file with a checkpoint's weights: all weights or, if adapters are trained, the trained ones."""
    adapters, model = (files_of(directory, name)[0].exists() for name in (ADAPTER, MODEL))
    return ADAPTER if adapters and not model else MODEL


def weights_files(directory: Path) -> list[Path]:
    """The files with a checkpoint's weights."""
    return files_of(directory, weights_name(directory))


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(step, directory) of every checkpoint of a run, newest first, including damaged ones."""
    folder = Path(run) / CHECKPOINTS
    names = folder.iterdir() if folder.is_dir() else ()
    steps = [(int(match[1]), path) for path in names if (match := _STEP.fullmatch(path.name))]
    return sorted(steps, reverse=True)


@checked()
def newest_valid(run: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files all match its manifest, and one line for each newer checkpoint that is skipped."""
    notes: list[str] = []
    for _, path in checkpoints(Path(run)):
        files = [*weights_files(path), *files_of(path, OPTIMIZER)]
        problems = check(path, (*(file.name for file in files), STATE))
        if not problems:
            return path, notes
        notes.append(f"{path} is skipped: {problems[0]}")
    return None, notes


def check(directory: Path, needed: tuple[str, ...], hashes: bool = True) -> list[str]:
    """The problems of a directory according to its manifest, which must list the `needed` files."""
    problems = verify(directory, hashes)
    if problems:
        return problems
    files = read_manifest(directory)["files"]
    return [f"manifest.json does not list {name}" for name in needed if name not in files]


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory that `verify` has accepted."""
    data: dict[str, Any] = json.loads((directory / "manifest.json").read_bytes())
    return data


@checked()
def read_state(directory: str | Path) -> CheckpointState:
    """Read a checkpoint, to the CPU.

    Raises:
        HeddleError: a file is missing or damaged.
    """
    model, optimizer, state = open_state(Path(directory))
    return CheckpointState(dict(model), dict(optimizer), state)


def open_state(directory: Path) -> SavedState:
    """The same, with tensors that are read on access."""
    file = directory / STATE
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HeddleError(f"{file}: cannot be read ({error}); use another checkpoint") from None
    if not isinstance(data, dict):
        raise HeddleError(f"{file}: not a training state; use another checkpoint")
    return SavedState(Weights(weights_files(directory)), Weights(files_of(directory, OPTIMIZER)), data)


def discard(directory: Path) -> None:
    """Remove a directory atomically for readers. If the process is killed, the next `remove_leftovers` finishes the removal."""
    renamed = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.partial")
    directory.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)
