"""Checkpoints: `checkpoints/step-N` of a run, each a complete run with its training state."""

import json
import re
import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heddle.checks import SOME, at_least, checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.weights.files import remove_leftovers, verify, write_directory, write_manifest
from heddle.weights.tensors import read_tensors, save_tensors

MODEL = "model.safetensors"
ADAPTER = "adapter.safetensors"  # instead of the model in a checkpoint, next to the model in a run
OPTIMIZER = "optimizer.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
STATE = "state.json"
CHECKPOINTS = "checkpoints"
_STEP = re.compile(r"step-(\d+)")


@displayed()
class CheckpointState(NamedTuple):
    """The state from which training resumes: `model, optimizer, state = read_state(checkpoint)`."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
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
    run = Path(run)
    if not (run / CONFIG).is_file():
        raise HeddleError(f"{run}: has no {CONFIG}, so it is not a run and cannot have checkpoints")
    target = run / CHECKPOINTS / f"step-{step}"
    if target.parent.is_dir():
        remove_leftovers(target.parent)
    with write_directory(target, replace=True) as directory:
        save_tensors(directory / (MODEL if full else ADAPTER), model_tensors, {"format": "pt"})
        save_tensors(directory / OPTIMIZER, optimizer_tensors)
        (directory / STATE).write_text(json.dumps(dict(state), indent=2) + "\n", encoding="utf-8")
        # With these files, a checkpoint is a complete run wherever it is copied.
        for name in (CONFIG, TOKENIZER):
            if (run / name).is_file():
                shutil.copyfile(run / name, directory / name)
        write_manifest(directory, {"step": step})
    # A run that was rewound may have checkpoints of later steps. The new checkpoint always stays.
    older = [(number, path) for number, path in checkpoints(run) if path != target]
    for number, path in older[max(keep, 1) - 1 :]:
        if number not in also:
            discard(path)
    return target


def weights_file(directory: Path) -> Path:
    """The file with a checkpoint's weights: all weights or, if adapters are trained, the trained ones."""
    return directory / (ADAPTER if (directory / ADAPTER).exists() and not (directory / MODEL).exists() else MODEL)


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
        problems = check(path, (weights_file(path).name, OPTIMIZER, STATE))
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
    """Read a checkpoint that `save_checkpoint` wrote, to the CPU.

    Raises:
        HeddleError: a file is missing or damaged.
    """
    directory = Path(directory)
    file = directory / STATE
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HeddleError(f"{file}: cannot be read ({error}); use another checkpoint") from None
    if not isinstance(data, dict):
        raise HeddleError(f"{file}: not a training state; use another checkpoint")
    return CheckpointState(read_tensors(weights_file(directory)), read_tensors(directory / OPTIMIZER), data)


def discard(directory: Path) -> None:
    """Remove a directory atomically for readers. If the process is killed, the next `remove_leftovers` finishes the removal."""
    renamed = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.partial")
    directory.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)
