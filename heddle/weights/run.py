"""The run directory: one model with its config, tokenizer and training state, which can be loaded at any moment.

    config.json  tokenizer.json            the model, the training and the tokenizer
    model.safetensors  manifest.json       the published fp32 weights, and the checksums of files
    adapter.safetensors                    the trained adapters, which the published weights include (see `adapter`)
    metrics.jsonl                          the metrics of training
    start.safetensors                      the weights of the run that it starts from
    vectors.safetensors                    the initial rows of the token table from a file of vectors
    checkpoints/step-N/                    config, tokenizer and weights again, with the training state; with adapters, only
                                           the trained weights, which need start.safetensors; shards from several processes

`publish` replaces several files. It first writes a complete directory next to them (`.publishing`), then moves its files into
place, the manifest last, then removes the directory. At any moment, the old files, that directory, or the new files are complete.
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
from heddle.model.fusing import FUSED
from heddle.model.groups import trained_state
from heddle.model.linear import KINDS
from heddle.model.lora import adapt, merge
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
    files_of,
    read_manifest,
    weights_files,
    weights_name,
)
from heddle.weights.checkpoints import newest_valid as newest_valid
from heddle.weights.checkpoints import read_state as read_state
from heddle.weights.checkpoints import save_checkpoint as save_checkpoint
from heddle.weights.files import MANIFEST, remove_leftovers, write_directory, write_manifest
from heddle.weights.special_tokens import reading
from heddle.weights.start import START, load_start
from heddle.weights.tensors import (
    LAYER,
    Weights,
    check_depth,
    check_finite,
    compare,
    fill,
    save_tensors,
    specs_of,
)

PUBLISHING = ".publishing"
NEEDED = (CONFIG, MODEL)


@displayed()
class Loaded(NamedTuple):
    """The result of `load`: `model, tokenizer = load(run)`."""

    model: Transformer  # in evaluation mode
    tokenizer: Tokenizer | None  # set up to frame texts for the model; None for weights imported without a tokenizer


@checked(step=at_least(0), model_tensors=SOME)
def publish(
    run: str | Path,
    model_tensors: Mapping[str, Tensor],
    step: int,
    extra: Mapping[str, object] | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Make these the weights of a run that already has its `config.json` (and `tokenizer.json`).

    If the process is killed at any moment, the run still loads with the old or the new weights.

    Args:
        extra: further entries of the manifest, in addition to `step`.
        adapter: the trained adapters, to be saved in addition to the merged weights.

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
    """Write a model atomically as a new run directory, which `load` reads.

    Args:
        overwrite: whether to replace a saved or imported model and everything in its directory. A training run, or anything that
            is not a heddle model, is never replaced.

    Raises:
        HeddleError: the config no longer describes the model, or weights are NaN or infinite; the directory exists and must not
            be overwritten; the tokenizer has more ids than the model; or the disk is full or cannot be written.
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
    """Refuse a model that `load` could not read back, since `load` builds the model from its config and requires finite weights.

    Raises:
        HeddleError: a module was replaced, added or wrapped, or a weight has another shape or is NaN or infinite.
    """
    expected_model = build_empty(model.config, Path("model"))
    modules = dict(model.named_modules())
    for name, expected in expected_model.named_modules():
        module = modules.pop(name, None)
        if type(module) in (type(expected), KINDS.get(type(expected)), FUSED.get(type(expected))):
            continue
        actual = "missing" if module is None else article(type(module).__name__)
        raise HeddleError(
            f"cannot save this model: {name} is {actual}, but load would build {article(type(expected).__name__)} from its config; "
            "name your own mixer or feed-forward in the config, as kind = 'custom'"
        )
    if modules:
        raise HeddleError(
            f"cannot save this model: its config does not describe {next(iter(modules))}, so load would lose it"
        )
    state, where = model.state_dict(), Path("model")
    sizes = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    compare(specs_of(sizes), specs_of(expected_model.state_dict()), where)
    for name, tensor in state.items():
        check_finite(name, tensor, where)


def _check_replaceable(run: Path, overwrite: bool) -> None:
    """Raise if `save` must not replace this directory."""
    if not overwrite:
        raise HeddleError(f"{run} already exists; nothing was changed. Choose another path, or pass overwrite=True")
    try:
        is_training_run = read_config(run).train is not None or (run / CHECKPOINTS).exists()
    except HeddleError as error:
        raise HeddleError(f"{run} is not overwritten: heddle did not save it ({error})") from None
    if is_training_run:
        raise HeddleError(f"{run} is not overwritten: it is a training run; choose another path, or delete it first")


def write_model(
    directory: Path,
    model_tensors: Mapping[str, Tensor],
    config: SavedConfig,
    tokenizer: Tokenizer | None,
    step: int,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Fill a new directory with a complete model: config, tokenizer, fp32 weights, manifest. Not atomic.

    Integer buffers of custom modules keep their dtype.
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
        HeddleError: it is missing or damaged, or another program wrote it.
    """
    file = Path(run) / CONFIG
    if not Path(run).is_dir():
        raise HeddleError(f"{run}: no such directory")
    if not file.is_file():
        raise HeddleError(f"{run}: not a run directory, since it has no {CONFIG}")
    with suppress(ValueError, OSError, RecursionError):  # invalid JSON is reported below
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and "model_type" in data:
            raise HeddleError(f"{run}: a Hugging Face model; import it first: heddle import {run} RUN")
    return SavedConfig.read(file)


@checked()
def load(source: str | Path, device: str = "auto") -> Loaded:
    """The newest model of a run directory, or the model of a checkpoint directory (`RUN/checkpoints/step-N`).

    Every file is first compared with the manifest. If training continued after the weights were published, the newest checkpoint is
    loaded. Damaged weights are refused, never replaced by older ones.

    Args:
        device: auto, cpu, cuda, a card such as cuda:1, or mps.

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
            # Training may have published new weights meanwhile; then try again.
            if _snapshot(run) == before:
                raise
        except OSError as error:
            raise HeddleError(f"{error.filename or run}: cannot be read ({error.strerror})") from None


def damage(run: Path, hashes: bool = True) -> list[str]:
    """The problems of a run's published weights, one line each.

    Args:
        hashes: whether to compare checksums; otherwise only sizes are compared.
    """
    if _step(run) is None or (run / PUBLISHING).is_dir():  # a killed publish left complete files, which are used
        return []
    return check(run, NEEDED, hashes)


def build_empty(config: TransformerConfig, where: Path) -> Transformer:
    """A model on the meta device, without memory for weights. Impossible sizes raise a one-line error."""
    try:
        return build(config, "meta")
    except (RuntimeError, TypeError, OverflowError):
        raise HeddleError(f"{where}: the sizes in the config are too large for any machine") from None


def _load_directory(directory: Path, device: torch.device) -> Loaded:
    saved = read_config(directory)
    config, files = saved.model, weights_files(directory)
    if is_adapter := weights_name(directory) == ADAPTER:
        starts = [place / START for place in (directory, *directory.parents[:2]) if (place / START).is_file()]
        files = starts[:1] or files
    weights, file = Weights(files), files[0]
    for name, stack in config.stacks().items():
        check_depth(
            weights, LAYER.format(stack=name), stack.depth, file, stack=None if len(config.stacks()) == 1 else name
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
    if is_adapter:
        _fill_adapted(model, directory, file, saved, device)
    else:
        fill(model, weights, file, device)
    return Loaded(model.eval(), None if tokenizer is None else reading(config, tokenizer))


@torch.no_grad()
def _fill_adapted(model: Transformer, directory: Path, start: Path, saved: SavedConfig, device: torch.device) -> None:
    """Load a checkpoint of adapters, merged into the weights that the run started from."""
    if saved.train is None or saved.chosen is None or saved.chosen.start is None or start.name != START:
        raise HeddleError(f"{directory}: its adapters need {START} from the run of this checkpoint")
    adapt(model, saved.train.lora)
    materialise(model, device)
    load_start(model, start, saved.chosen.start.sha256)
    parameters, trained = trained_state(model, saved.train), Weights(files_of(directory, ADAPTER))
    compare(trained.specs, specs_of(parameters), directory / ADAPTER)
    for name, tensor in parameters.items():
        value = trained[name]
        check_finite(name, value, directory / ADAPTER)
        tensor.copy_(value)
    merge(model)


def _newest(run: Path) -> Path:
    """The directory to load from: the published weights, or a later checkpoint."""
    staging = run / PUBLISHING
    published = staging if staging.is_dir() and not check(staging, NEEDED) else run

    def needed(directory: Path) -> tuple[str, ...]:
        return CONFIG, *(file.name for file in weights_files(directory))

    step = _step(published)
    later = [path for number, path in checkpoints(run) if step is None or number > step]
    newest = later[0] if later else published
    if newest == run and step is None:
        raise HeddleError(f"{run}: no weights yet, neither published nor in a checkpoint; train it first")
    problems = check(newest, needed(newest))
    if problems:
        undamaged = [path for _, path in checkpoints(run) if path != newest and not check(path, needed(path))]
        advice = (
            f"{undamaged[0]} is undamaged: name it to load it"
            if undamaged
            else "restore an undamaged copy or train again"
        )
        raise HeddleError(f"{newest / problems[0]}. These files are damaged and were not loaded; {advice}")
    return newest


def _step(directory: Path) -> int | None:
    """The step of published weights, or None without weights. If the manifest is unreadable, they count as the latest."""
    if not (directory / MANIFEST).is_file() and not (directory / MODEL).is_file():
        return None
    try:
        return int(read_manifest(directory)["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 2**63


def _snapshot(run: Path) -> tuple[object, ...]:
    """A value that changes whenever `publish` or `save_checkpoint` changes something."""
    values: list[object] = [(run / PUBLISHING).exists(), checkpoints(run)]
    with suppress(OSError):
        status = (run / MANIFEST).stat()
        values += [status.st_ino, status.st_mtime_ns]
    return tuple(map(str, values))


def _finish_publishing(run: Path) -> None:
    """Move the files of `.publishing` into place, also after a killed `publish`."""
    staging = run / PUBLISHING
    if not staging.is_dir():
        return
    if not check(staging, NEEDED):
        files: dict[str, Any] = read_manifest(staging)["files"]
        for name in (*files, MANIFEST):
            _link_or_copy(staging / name, run / name)
    discard(staging)


def _link_or_copy(source: Path, target: Path) -> None:
    """Link or copy a file to another path atomically."""
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
