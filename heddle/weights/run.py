"""The run directory: one model with its config, tokenizer and training state, loadable at any moment.

    config.json  tokenizer.json            what the run is
    model.safetensors  manifest.json       the published weights, fp32, and what every file must be
    adapter.safetensors                    of them, what adapters learned, if they were trained (see `adapter`)
    metrics.jsonl                          the metrics of training
    start.safetensors                      the weights of the run that it starts from, if there is one
    vectors.safetensors                    the initial rows of the token table, if a file of vectors was given
    checkpoints/step-N/                    config, tokenizer and weights again, with the state of training; with adapters,
                                           only what is trained, beside start.safetensors

`publish` replaces several files. It first writes a complete directory next to them (`.publishing`), then moves its files
into place, the manifest last, then removes the directory: at any moment the old files, that directory, or the new files are
complete.
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

from heddle.checks import SOME, at_least, checked
from heddle.config.model import TransformerConfig
from heddle.config.saved import SavedConfig
from heddle.display import displayed
from heddle.errors import HeddleError, article
from heddle.model.build import build, materialise
from heddle.model.device import pick_device
from heddle.model.groups import trained_state
from heddle.model.lora import adapt, merge
from heddle.model.packing import KINDS
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.weights.adapter import Adapter
from heddle.weights.checkpoints import (
    ADAPTER,
    CHECKPOINTS,
    CONFIG,
    MODEL,
    TOKENIZER,
    check,
    checkpoints,
    discard,
    read_manifest,
    weights_file,
)
from heddle.weights.checkpoints import newest_valid as newest_valid
from heddle.weights.checkpoints import read_state as read_state
from heddle.weights.checkpoints import save_checkpoint as save_checkpoint
from heddle.weights.files import MANIFEST, remove_leftovers, write_directory, write_manifest
from heddle.weights.special_tokens import reading
from heddle.weights.start import START, load_start
from heddle.weights.tensors import (
    LAYER,
    check_depth,
    check_finite,
    compare,
    fill,
    read_header,
    read_tensors,
    save_tensors,
    specs_of,
)

PUBLISHING = ".publishing"
NEEDED = (CONFIG, MODEL)


@displayed()
class Loaded(NamedTuple):
    """The result of `load`: `model, tokenizer = load(run)`."""

    model: Transformer  # in evaluation mode
    tokenizer: Tokenizer | None  # which knows how the model reads texts; None for weights imported without one


@checked(step=at_least(0), model_tensors=SOME)
def publish(
    run: str | Path,
    model_tensors: Mapping[str, Tensor],
    step: int,
    extra: Mapping[str, object] | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Make these the weights of a run that already has its `config.json` (and `tokenizer.json`).

    If it is killed at any moment, the run still loads, with the old weights or with these.

    Args:
        extra: further entries of the manifest, next to `step`.
        adapter: what adapters learned, to be kept beside the weights that contain it.

    Raises:
        HeddleError: the run has no config, or the disk is full or cannot be written. Nothing is changed then.
    """
    run = Path(run)
    config = read_config(run)
    tokenizer = load_tokenizer(run / TOKENIZER) if (run / TOKENIZER).is_file() else None
    remove_leftovers(run)
    _finish_publishing(run)
    with write_directory(run / PUBLISHING) as directory:
        if adapter is not None:
            adapter.save(directory / ADAPTER)
        write_model(directory, model_tensors, config, tokenizer, step, extra)
    _finish_publishing(run)


@checked()
def save(model: Transformer, run: str | Path, tokenizer: Tokenizer | None = None, *, overwrite: bool = False) -> None:
    """Write a model as a new run directory, completely or not at all; `load` reads it.

    Args:
        overwrite: whether to replace a model that was saved or imported there, with everything in the directory. A
            training run, or anything that is not a heddle model, is never replaced.

    Raises:
        HeddleError: the model has changed so that its config no longer describes it, or its weights are NaN or infinite; the
            directory exists and must not be overwritten; the tokenizer has ids that the model does not have; or the disk is
            full or cannot be written.
    """
    run = Path(run)
    check_described(model)
    if tokenizer is not None and tokenizer.vocab_size > model.vocab_size:
        model.check_vocabulary(tokenizer.vocab_size)
    if os.path.lexists(run):
        _check_replaceable(run, overwrite)
    with write_directory(run, replace=overwrite) as directory:
        write_model(directory, model.state_dict(), SavedConfig(model=model.config), tokenizer, step=0)


def check_described(model: Transformer) -> None:
    """Refuse a model that `load` could not read back: it builds what the config says, then fills in finite weights.

    Raises:
        HeddleError: a module was replaced, added or wrapped, or a weight is of another shape, NaN or infinite.
    """
    described = build_empty(model.config, Path("model"))
    modules = dict(model.named_modules())
    for name, wanted in described.named_modules():
        module = modules.pop(name, None)
        if type(module) in (type(wanted), KINDS.get(type(wanted))):
            continue
        actual = "missing" if module is None else article(type(module).__name__)
        raise HeddleError(
            f"cannot save this model: {name} is {actual}, and its config describes {article(type(wanted).__name__)}, which is what "
            "load would build; name your own mixer or feed-forward in the config, as kind = 'custom'"
        )
    if modules:
        raise HeddleError(
            f"cannot save this model: its config does not describe {next(iter(modules))}, so load would lose it"
        )
    state, where = model.state_dict(), Path("model")
    sizes = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    compare(specs_of(sizes), specs_of(described.state_dict()), where)
    for name, tensor in state.items():
        check_finite(name, tensor, where)


def _check_replaceable(run: Path, overwrite: bool) -> None:
    """Raise if `save` must not replace this directory."""
    if not overwrite:
        raise HeddleError(f"{run} already exists, nothing was changed: choose another path, or pass overwrite=True")
    try:
        trained = read_config(run).train is not None or (run / CHECKPOINTS).exists()
    except HeddleError as error:
        raise HeddleError(f"{run} is not overwritten, since it is not a model that heddle saved ({error})") from None
    if trained:
        raise HeddleError(
            f"{run} is not overwritten, since it is a training run; choose another path, or delete it first"
        )


def write_model(
    directory: Path,
    model_tensors: Mapping[str, Tensor],
    config: SavedConfig,
    tokenizer: Tokenizer | None,
    step: int,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Fill a new directory with a complete model: config, tokenizer, fp32 weights, manifest. Not atomic.

    Buffers of custom modules that are not floating-point keep their dtype.
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
    with suppress(ValueError, OSError, RecursionError):  # invalid JSON is reported below
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and "model_type" in data:
            raise HeddleError(f"{run}: a Hugging Face model; import it first: heddle import {run} RUN")
    return SavedConfig.read(file)


@checked()
def load(source: str | Path, device: str = "auto") -> Loaded:
    """The newest model of a run directory, or the one in a checkpoint directory (`RUN/checkpoints/step-N`).

    Every file is first compared with its manifest. If training continued after the last publication, the newest
    checkpoint is loaded. Damaged weights are refused, never replaced by older ones.

    Args:
        device: auto, cpu, cuda or mps.

    Raises:
        HeddleError: no such run, no weights yet, damaged files, weights that do not match the config, or no such device.
    """
    run, target = Path(source), pick_device(device)
    read_config(run)
    while True:
        before = _snapshot(run)
        try:
            return _load_directory(_newest(run), target)
        except HeddleError:
            # Training may have published in the meantime; then try again.
            if _snapshot(run) == before:
                raise
        except OSError as error:
            raise HeddleError(f"{error.filename or run}: cannot be read ({error.strerror})") from None


def damage(run: Path, hashes: bool = True) -> list[str]:
    """The problems of the weights that a run has published, one line each; empty if there are none.

    Args:
        hashes: whether to read the files; otherwise only their sizes are compared.
    """
    if _step(run) is None or (run / PUBLISHING).is_dir():  # a killed publication left complete files, which are used
        return []
    return check(run, NEEDED, hashes)


def build_empty(config: TransformerConfig, where: Path) -> Transformer:
    """A model on the meta device, which takes no memory for weights; impossible sizes raise a one-line error."""
    try:
        return build(config, "meta")
    except (RuntimeError, TypeError, OverflowError):
        raise HeddleError(f"{where}: the sizes in the config are larger than any machine can hold") from None


def _load_directory(directory: Path, device: torch.device) -> Loaded:
    saved = read_config(directory)
    config, file = saved.model, weights_file(directory)
    if beside := file.name == ADAPTER:
        file = next((place / START for place in (directory, *directory.parents[:2]) if (place / START).is_file()), file)
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
                f"{directory / TOKENIZER}: {tokenizer.vocab_size} ids, but the model has only {config.vocab_size}; "
                "this is another model's tokenizer"
            )
    if beside:
        _fill_beside(model, directory, file, saved, device)
    else:
        fill(model, file, device)
    return Loaded(model.eval(), None if tokenizer is None else reading(config, tokenizer))


@torch.no_grad()
def _fill_beside(model: Transformer, directory: Path, start: Path, saved: SavedConfig, device: torch.device) -> None:
    """Load a checkpoint of adapters: the weights that the run started from, and what it has trained, merged."""
    if saved.train is None or saved.chosen is None or saved.chosen.start is None or start.name != START:
        raise HeddleError(f"{directory}: its adapters need {START}, which is in the run that it is a checkpoint of")
    adapt(model, saved.train.lora)
    materialise(model, device)
    load_start(model, start, saved.chosen.start.sha256)
    wanted, found = trained_state(model, saved.train), read_tensors(directory / ADAPTER)
    compare(specs_of(found), specs_of(wanted), directory / ADAPTER)
    for name, tensor in wanted.items():
        check_finite(name, found[name], directory / ADAPTER)
        tensor.copy_(found[name])
    merge(model)


def _newest(run: Path) -> Path:
    """The directory to load from: the published weights, or a later checkpoint."""
    staged = run / PUBLISHING
    published = staged if staged.is_dir() and not check(staged, NEEDED) else run

    def needed(directory: Path) -> tuple[str, ...]:
        return CONFIG, weights_file(directory).name

    step = _step(published)
    later = [path for number, path in checkpoints(run) if step is None or number > step]
    chosen = later[0] if later else published
    if chosen == run and step is None:
        raise HeddleError(f"{run}: no weights yet, neither published nor in a checkpoint; train it first")
    problems = check(chosen, needed(chosen))
    if problems:
        undamaged = [path for _, path in checkpoints(run) if path != chosen and not check(path, needed(path))]
        advice = (
            f"{undamaged[0]} is undamaged: name it to load it"
            if undamaged
            else "restore an undamaged copy or train again"
        )
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


def _snapshot(run: Path) -> tuple[object, ...]:
    """A value that changes whenever `publish` or `save_checkpoint` changes something."""
    seen: list[object] = [(run / PUBLISHING).exists(), checkpoints(run)]
    with suppress(OSError):
        status = (run / MANIFEST).stat()
        seen += [status.st_ino, status.st_mtime_ns]
    return tuple(map(str, seen))


def _finish_publishing(run: Path) -> None:
    """Move the staged files into place, including those of a killed `publish`."""
    staged = run / PUBLISHING
    if not staged.is_dir():
        return
    if not check(staged, NEEDED):
        files: dict[str, Any] = read_manifest(staged)["files"]
        for name in (*files, MANIFEST):
            _link_or_copy(staged / name, run / name)
    discard(staged)


def _link_or_copy(source: Path, target: Path) -> None:
    """Link or copy a file to a second path, atomically."""
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        os.link(source, partial)
    except OSError:  # a file system without links
        shutil.copyfile(source, partial)
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.rename(target)
    partial.unlink(missing_ok=True)  # if both were already the same file, renaming keeps both names
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
