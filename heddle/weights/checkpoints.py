"""Checkpoints: `checkpoints/step-N` of a run, each a whole run that also holds what training goes on from."""

import json
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heddle.checks import at_least, checked
from heddle.errors import HeddleError
from heddle.weights.files import sweep, verify, write_directory, write_manifest
from heddle.weights.tensors import read_tensors, save_tensors

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
STATE = "state.json"
CHECKPOINTS = "checkpoints"
_STEP = re.compile(r"step-(\d+)")


class State(NamedTuple):
    """What training goes on from: `model, optimizer, state = read_state(checkpoint)`."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


@checked(step=at_least(0), keep=at_least(0))
def save_checkpoint(
    run: str | Path,
    step: int,
    model_tensors: Mapping[str, Tensor],
    optimizer_tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `checkpoints/step-N` of a run, then let go of all but the newest `keep`.

    The directory appears whole or not at all; older ones go only after it is in place. A checkpoint of the same step
    is replaced. What earlier writers left behind when they were killed is cleared.

    Args:
        state: JSON-ready data beside the tensors, given back by `read_state`.

    Raises:
        HeddleError: the run has no config yet, or the disk is full or cannot be written; nothing is changed then.
    """
    run = Path(run)
    if not (run / CONFIG).is_file():
        raise HeddleError(f"{run}: no {CONFIG} there, so no run that a checkpoint could belong to")
    target = run / CHECKPOINTS / f"step-{step}"
    if target.parent.is_dir():
        sweep(target.parent)
    with write_directory(target, replace=True) as directory:
        save_tensors(directory / MODEL, model_tensors, {"format": "pt"})
        save_tensors(directory / OPTIMIZER, optimizer_tensors)
        (directory / STATE).write_text(json.dumps(dict(state), indent=2) + "\n", encoding="utf-8")
        # With these a checkpoint is a run of its own, wherever it is copied to.
        for name in (CONFIG, TOKENIZER):
            if (run / name).is_file():
                shutil.copyfile(run / name, directory / name)
        write_manifest(directory, {"step": step})
    # A run that was set back may hold higher steps that this one's will overtake; the one just written always stays.
    others = [path for _, path in checkpoints(run) if path != target]
    for path in others[max(keep, 1) - 1 :]:
        discard(path)
    return target


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(step, directory) of every checkpoint of a run, the newest first, whether it is sound or not."""
    folder = Path(run) / CHECKPOINTS
    names = folder.iterdir() if folder.is_dir() else ()
    found = [(int(match[1]), path) for path in names if (match := _STEP.fullmatch(path.name))]
    return sorted(found, reverse=True)


@checked()
def newest_valid(run: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose every file is as its manifest says, and one line for each newer one that is not."""
    notes: list[str] = []
    for _, path in checkpoints(Path(run)):
        problems = check(path, (MODEL, OPTIMIZER, STATE))
        if not problems:
            return path, notes
        notes.append(f"{path} is left out: {problems[0]}")
    return None, notes


def check(directory: Path, needed: tuple[str, ...], hashes: bool = True) -> list[str]:
    """What is wrong with a directory by its manifest, which must speak of the `needed` files."""
    problems = verify(directory, hashes)
    if problems:
        return problems
    files = read_manifest(directory)["files"]
    return [f"manifest.json does not speak of {name}" for name in needed if name not in files]


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory that `verify` has found sound."""
    data: dict[str, Any] = json.loads((directory / "manifest.json").read_bytes())
    return data


@checked()
def read_state(directory: str | Path) -> State:
    """What `save_checkpoint` wrote, on the CPU.

    Raises:
        HeddleError: a file is missing or damaged.
    """
    directory = Path(directory)
    file = directory / STATE
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HeddleError(f"{file}: cannot be read ({error}); take another checkpoint") from None
    if not isinstance(data, dict):
        raise HeddleError(f"{file}: not the state of a training; take another checkpoint")
    return State(read_tensors(directory / MODEL), read_tensors(directory / OPTIMIZER), data)


def discard(directory: Path) -> None:
    """Remove a directory so that it is never seen half removed; a killed removal is finished by the next `sweep`."""
    gone = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.partial")
    directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
