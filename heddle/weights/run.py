"""The run directory: one model with all that belongs to it, loadable at any moment.

    config.json  tokenizer.json            what the run is
    model.safetensors  manifest.json       the published weights, fp32, and what every file must be
    metrics.jsonl                          what training wrote down
    vectors.safetensors                    the rows that the token table began with, where a file of vectors was given
    checkpoints/step-N/                    all of this again, with the state of training

`publish` replaces several files. It first puts a complete directory beside them (`.publishing`), then brings its files
into place, the manifest last, then takes the directory away: at any moment there are either the old files, or that
directory, or the new files, whole.
"""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.config.model import TransformerConfig
from heddle.config.run import SavedConfig
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.device import pick_device
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.weights.checkpoints import CHECKPOINTS, CONFIG, MODEL, TOKENIZER, check, checkpoints, discard, read_manifest
from heddle.weights.checkpoints import newest_valid as newest_valid
from heddle.weights.checkpoints import read_state as read_state
from heddle.weights.checkpoints import save_checkpoint as save_checkpoint
from heddle.weights.files import MANIFEST, sweep, write_directory, write_manifest
from heddle.weights.tensors import LAYER, check_depth, fill, read_header, save_tensors

PUBLISHING = ".publishing"
NEEDED = (CONFIG, MODEL)


class Loaded(NamedTuple):
    """What `load` gives: `model, tokenizer = load(run)`."""

    model: Transformer  # in evaluation mode
    tokenizer: Tokenizer | None  # None where weights were taken over without one


@checked(step=at_least(0))
def publish(
    run: str | Path, model_tensors: Mapping[str, Tensor], step: int, extra: Mapping[str, object] | None = None
) -> None:
    """Make these the weights of a run, whose `config.json` (and `tokenizer.json`) are there already.

    Killed at any moment, the run still loads: with the weights from before, or with these.

    Args:
        extra: further entries of the manifest, beside `step`.

    Raises:
        HeddleError: the run has no config, or the disk is full or cannot be written; nothing is changed then.
    """
    run = Path(run)
    config = read_config(run)
    tokenizer = load_tokenizer(run / TOKENIZER) if (run / TOKENIZER).is_file() else None
    sweep(run)
    _finish_publishing(run)
    with write_directory(run / PUBLISHING) as directory:
        write_model(directory, model_tensors, config, tokenizer, step, extra)
    _finish_publishing(run)


@checked()
def save(model: Transformer, run: str | Path, tokenizer: Tokenizer | None = None, *, overwrite: bool = False) -> None:
    """Write a model as a new run directory, whole or not at all; `load` reads it.

    Args:
        overwrite: whether to replace a model that was saved or imported there, with all that is in the directory. The run
            of a training is never replaced, nor anything that is no model of heddle's.

    Raises:
        HeddleError: the directory exists and is not to be overwritten, the tokenizer has ids that the model does not
            know, or the disk is full or cannot be written.
    """
    run = Path(run)
    if tokenizer is not None and tokenizer.vocab_size > model.vocab_size:
        model.check_vocabulary(tokenizer.vocab_size)
    if os.path.lexists(run):
        _check_replaceable(run, overwrite)
    with write_directory(run, replace=overwrite) as directory:
        write_model(directory, model.state_dict(), SavedConfig(model=model.config), tokenizer, step=0)


def _check_replaceable(run: Path, overwrite: bool) -> None:
    """Refuse what `save` must not replace."""
    if not overwrite:
        raise HeddleError(f"{run} exists already, nothing was changed: choose another place, or say overwrite=True")
    try:
        trained = read_config(run).train is not None or (run / CHECKPOINTS).exists()
    except HeddleError as error:
        raise HeddleError(f"{run} is not overwritten, since it is no model that heddle saved ({error})") from None
    if trained:
        raise HeddleError(
            f"{run} is not overwritten, since it holds a training; choose another place, or delete it first"
        )


def write_model(
    directory: Path,
    model_tensors: Mapping[str, Tensor],
    config: SavedConfig,
    tokenizer: Tokenizer | None,
    step: int,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Fill a new directory with a complete model: config, tokenizer, fp32 weights, manifest. Not atomic by itself.

    Buffers of a user's own modules that hold no real numbers keep their dtype.
    """
    (directory / CONFIG).write_text(config.to_json(), encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(directory)
    tensors = {name: t.float() if t.is_floating_point() else t for name, t in model_tensors.items()}
    save_tensors(directory / MODEL, tensors, {"format": "pt"})
    write_manifest(directory, {"step": step, **(extra or {})})


@checked()
def read_config(run: str | Path) -> SavedConfig:
    """The `config.json` of a run or of a checkpoint.

    Raises:
        HeddleError: there is none, it is damaged, or it is not heddle's.
    """
    file = Path(run) / CONFIG
    if not Path(run).is_dir():
        raise HeddleError(f"{run}: no such directory")
    if not file.is_file():
        raise HeddleError(f"{run}: not a run directory, it has no {CONFIG}")
    with suppress(ValueError, OSError, RecursionError):  # what is no JSON is reported below
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and "model_type" in data:
            raise HeddleError(f"{run}: a model of transformers; take it over first: heddle import {run} RUN")
    return SavedConfig.read(file)


@checked()
def load(source: str | Path, device: str = "auto") -> Loaded:
    """The newest model of a run directory, or the one in a checkpoint directory (`RUN/checkpoints/step-N`).

    Every file is compared with its manifest first. Where training went on after the last publication, the newest
    checkpoint is taken. Damaged weights are refused, never replaced by older ones.

    Args:
        device: auto, cpu, cuda or mps.

    Raises:
        HeddleError: no such run, no weights yet, damaged files, weights that are not the config's, or no such device.
    """
    run, target = Path(source), pick_device(device)
    read_config(run)
    while True:
        before = _moment(run)
        try:
            return _load_directory(_newest(run), target)
        except HeddleError:
            # A training may have published between two looks; then look again.
            if _moment(run) == before:
                raise
        except OSError as error:
            raise HeddleError(f"{error.filename or run}: cannot be read ({error.strerror})") from None


def damage(run: Path, hashes: bool = True) -> list[str]:
    """What is wrong with the weights that a run has published, a line each; nothing where none are.

    Args:
        hashes: whether to read the files; without, only their sizes are compared.
    """
    if _step(run) is None or (run / PUBLISHING).is_dir():  # what a killed publication left is whole, and used
        return []
    return check(run, NEEDED, hashes)


def build_empty(config: TransformerConfig, where: Path) -> Transformer:
    """A model on the meta device, which takes no memory for weights; sizes beyond all machines are one clear line."""
    try:
        return build(config, "meta")
    except (RuntimeError, TypeError, OverflowError):
        raise HeddleError(f"{where}: the sizes in the config are larger than any machine can hold") from None


def _load_directory(directory: Path, device: torch.device) -> Loaded:
    config = read_config(directory).model
    file = directory / MODEL
    names = read_header(file)
    for name, stack in config.stacks().items():
        check_depth(
            names, LAYER.format(stack=name), stack.depth, file, stack=None if len(config.stacks()) == 1 else name
        )
    model = build_empty(config, directory / CONFIG)
    tokenizer = None
    if (directory / TOKENIZER).is_file():
        tokenizer = load_tokenizer(directory / TOKENIZER)
        if tokenizer.vocab_size > config.vocab_size:
            raise HeddleError(
                f"{directory / TOKENIZER}: {tokenizer.vocab_size} ids, but the model knows only {config.vocab_size}; "
                "this is another model's tokenizer"
            )
    fill(model, file, device)
    return Loaded(model.eval(), tokenizer)


def _newest(run: Path) -> Path:
    """The directory to load from: the published weights, or a later checkpoint."""
    staged = run / PUBLISHING
    published = staged if staged.is_dir() and not check(staged, NEEDED) else run
    step = _step(published)
    later = [path for number, path in checkpoints(run) if step is None or number > step]
    chosen = later[0] if later else published
    if chosen == run and step is None:
        raise HeddleError(f"{run}: no weights yet, neither published nor in a checkpoint; train it first")
    problems = check(chosen, NEEDED)
    if problems:
        sound = [path for _, path in checkpoints(run) if path != chosen and not check(path, NEEDED)]
        advice = f"{sound[0]} is sound: name it to load it" if sound else "bring back a sound copy or train again"
        raise HeddleError(f"{chosen / problems[0]}. These files are damaged and were not loaded; {advice}")
    return chosen


def _step(directory: Path) -> int | None:
    """The step of published weights, None if there are none. Without a readable manifest they count as the latest."""
    if not (directory / MANIFEST).is_file() and not (directory / MODEL).is_file():
        return None
    try:
        return int(read_manifest(directory)["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 2**63


def _moment(run: Path) -> tuple[object, ...]:
    """What changes whenever `publish` or `save_checkpoint` does something."""
    seen: list[object] = [(run / PUBLISHING).exists(), checkpoints(run)]
    with suppress(OSError):
        status = (run / MANIFEST).stat()
        seen += [status.st_ino, status.st_mtime_ns]
    return tuple(map(str, seen))


def _finish_publishing(run: Path) -> None:
    """Bring what was staged into place, also on behalf of a `publish` that was killed."""
    staged = run / PUBLISHING
    if not staged.is_dir():
        return
    if not check(staged, NEEDED):
        files: dict[str, Any] = read_manifest(staged)["files"]
        for name in (*files, MANIFEST):
            _place(staged / name, run / name)
    discard(staged)


def _place(source: Path, target: Path) -> None:
    """Give a file a second place, atomically; the first stays."""
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        os.link(source, partial)
    except OSError:  # a file system without links
        shutil.copyfile(source, partial)
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.rename(target)
    partial.unlink(missing_ok=True)  # where both were one file already, renaming leaves both names
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
