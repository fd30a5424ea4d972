"""A run opened for training: model, optimizer and task, new or from the newest valid checkpoint."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.account.machine import peak_rate, usable_precision
from heddle.checks import checked
from heddle.config.saved import Chosen, SavedConfig
from heddle.config.tasks import NextTokenConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.data.record_store import Store, open_store
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.model.checkpointing import can_compile, checkpoint_activations
from heddle.model.device import pick_device
from heddle.model.groups import skeleton, trained_state
from heddle.model.linear import use_products
from heddle.model.precision import DTYPES, use_tf32
from heddle.model.products import has_onednn
from heddle.model.transformer import Transformer
from heddle.native.cores import cores
from heddle.parallel.join import join_ranks
from heddle.parallel.mesh import mesh_sizes
from heddle.parallel.parts import Parts
from heddle.parallel.ranks import Ranks
from heddle.runs.changeable import resume_identity
from heddle.runs.initial import InitialWeights
from heddle.runs.layout import check_run
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec, Task
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.train.compiling import compile_blocks, compile_objective
from heddle.train.model_selection import SelectedWeights, averaged_steps, restore, selected_weights
from heddle.train.optimizer import Optimizer
from heddle.train.runtime import keep_memory, prepare_deterministic
from heddle.train.training import Training, moving_average
from heddle.weights.average import mean_of
from heddle.weights.checkpoints import (
    ADAPTER,
    CHECKPOINTS,
    CONFIG,
    MODEL,
    OPTIMIZER,
    SavedState,
    fill_checkpoint,
    open_state,
)
from heddle.weights.files import Hold, remove_leftovers
from heddle.weights.run import damage, newest_valid, read_config, save_checkpoint
from heddle.weights.tensors import Weights, compare, specs_of

MASTER = "master/"  # the names of weights in a checkpoint whose own weights are their moving average


@displayed()
@dataclass(frozen=True)
class OpenedRun:
    """A run directory, read and, for training, locked.

    Attributes:
        directory: where it is.
        config: its `config.json`.
        train: the config's training part.
        chosen: the config's record of what was decided before the run.
        tokenizer: its `tokenizer.json`.
        store: its `data/`.
        hold: the lock, held until `hold.release()`, until this object is collected, or until the process ends. None on ranks
            that do not lead, and if the run is only read.
    """

    directory: Path
    config: SavedConfig
    train: TrainConfig
    chosen: Chosen
    tokenizer: Tokenizer
    store: Store
    hold: Hold | None = None

    def task(self) -> Task:
        """What it learns."""
        sizes = {"rows": self.chosen.batch, "batch_tokens": self.chosen.batch_tokens}
        config = self.config
        spec = DataSpec.of(config.data, self.train, self.store.corpus, config.model, self.tokenizer, **sizes)
        return make_task(config.task or NextTokenConfig(), spec)


@displayed()
@dataclass(frozen=True)
class ResumeReport:
    """What was found when a run was opened.

    Attributes:
        source: the checkpoint to continue from, or None.
        notes: a line for each newer checkpoint that is damaged.
        damaged: what is wrong with weights that were published before; the end of training replaces them.
        precision: the run's precision, or fp32 if the run comes from another machine and fp32 is over twice as fast here.
        peak: rate of matrix products in that precision, FLOP/s.
        moved: a line for each difference from the machine where the run started, which keeps the result from being bit-equal.
    """

    source: Path | None
    notes: list[str]
    damaged: list[str]
    precision: str
    peak: float
    moved: list[str]


@displayed()
@dataclass(kw_only=True)
class Session(Training):
    """A training with the files of a run. `open_session` opens one.

    Attributes:
        run: the directory.
        opening: what was found when the run was opened.
        saver: saves in the background, if several processes divide the model.
    """

    run: OpenedRun
    opening: ResumeReport
    saver: Any = None  # a Saver, whose module takes long to import

    def last_good(self) -> str:
        """The last good checkpoint, in words, after what is being written."""
        self.close()
        checkpoint, _ = newest_valid(self.run.directory)
        return f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint exists yet"

    def checkpoint(self, step: int) -> Path:
        """The directory of a step's checkpoint, whether it is there or not."""
        return self.run.directory / CHECKPOINTS / f"step-{step}"

    def save(self) -> None:
        """Write a checkpoint: the weights to use, what training needs beside them, and the step.

        The best checkpoint, and those that the run will average, stay beside the newest ones. Every rank calls this. Of several,
        each writes its shards in the background; `settle` waits for them.
        """
        run, also = self.run, set(averaged_steps(self.run.train, self.run.chosen))
        state: dict[str, Any] = {"step": self.step, "data": run.store.sources}
        if self.best is not None:
            state["best"] = self.best.to_dict()
            also.add(self.best.step)
        optimizer, parts = self.optimizer.state(), self.optimizer.parts
        if self.ema is not None:
            optimizer |= {MASTER + name: weight.detach() for name, weight in self.ema.weights.items()}
        weights, whole = self.own_weights(), run.train.lora is None
        if not whole:
            weights = {name: each for name, each in weights.items() if name not in self.optimizer.frozen}
        if parts is None or self.saver is None:
            save_checkpoint(run.directory, self.step, weights, optimizer, state, run.train.keep, also, whole)
            return
        weights = {name: parts.joint(name, each) for name, each in weights.items() if parts.saves(name)}
        tensors = {MODEL if whole else ADAPTER: weights, OPTIMIZER: parts.joint_state(optimizer)}
        directory = partial(fill_checkpoint, run.directory, self.step, state, run.train.keep, also)
        self.saver.start(self.checkpoint(self.step), tensors, directory)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if there is one.

        Raises:
            HeddleError: it cannot be written.
        """
        if self.saver is not None:
            self.saver.wait()

    def close(self, seconds: float | None = None) -> None:
        """Wait until nothing is written any more, whether or not it succeeds; at most so long, if another process is lost."""
        if self.saver is not None:
            self.saver.close(seconds)

    def finish(self) -> SelectedWeights:
        """Give the model the weights to publish (see `heddle.train.model_selection`); training cannot continue from them.

        Raises:
            HeddleError: a checkpoint that is needed is missing or damaged.
        """
        run, parts = self.run, self.optimizer.parts
        selected = selected_weights(run.train, run.chosen, self.step, self.best)
        folders = [self.checkpoint(step) for step in reversed(selected.steps)]
        self.settle()
        last, read = selected.steps == (self.step,), Weights.__getitem__ if parts is None else parts.read
        self.adopt(self.own_weights() if last else mean_of(folders, read))
        return selected


@checked()
def open_session(run: str | Path) -> Session:
    """Open a run for training, from its newest valid checkpoint, or from the start if there is none.

    The session locks the directory until `session.run.hold.release()` or until it is collected; reading the run needs no lock.
    Under torchrun, the processes share the work (see `heddle.parallel.ranks`), and only rank 0 has the lock.

    Args:
        run: a directory with `config.json`, `tokenizer.json` and `data/`.

    Raises:
        HeddleError: the directory is not a training run, its files do not belong together, or it is already being trained.
    """
    opened = read_run(Path(run))
    prepare_deterministic(opened.train.deterministic, opened.chosen.device)
    ranks = join_ranks(opened.chosen.device, opened.train.start_timeout, opened.train.step_timeout)
    text = {"text": opened.store.sources, "tokenizer": opened.tokenizer.fingerprint()}
    ranks.compare({**text, **opened.config.to_dict()})
    opened = replace(opened, hold=Hold(opened.directory) if ranks.leads else None)
    try:
        return _start(opened, ranks)
    except BaseException:
        if opened.hold is not None:
            opened.hold.release()
        raise


def read_run(run: Path) -> OpenedRun:
    """Read a run's files and compare them with each other.

    Raises:
        HeddleError: the directory is not a training run, or its files do not belong together.
    """
    config = read_config(run)
    if config.train is None or config.chosen is None:
        came = "imported, not trained here" if config.origin else "saved without its training"
        raise HeddleError(f"{run} was {came}, so it cannot be resumed")
    tokenizer: Tokenizer = load_tokenizer(run / "tokenizer.json")
    store = open_store(run / "data")
    if store.tokenizer != tokenizer.fingerprint():
        raise HeddleError(f"{run}: data/ was made with a tokenizer other than tokenizer.json; train a new run")
    # An imported model may have more ids than its tokenizer.
    fewer = config.chosen.start is not None and tokenizer.vocab_size < config.model.vocab_size
    if tokenizer.vocab_size != config.model.vocab_size and not fewer:
        raise HeddleError(
            f"{run}: tokenizer.json has {tokenizer.vocab_size} ids, config.json {config.model.vocab_size}"
        )
    store.verify()
    return OpenedRun(run, config, config.train, config.chosen, tokenizer, store)


def _start(run: OpenedRun, ranks: Ranks) -> Session:
    """Build everything, and restore the newest valid checkpoint."""
    keep_memory()
    config, train, chosen = run.config, run.train, run.chosen
    device = pick_device(chosen.device)
    use_tf32(train.tf32 and device.type == "cuda")  # a run on another device may be the copy of one on a card
    check_run(config, ranks.count)
    sizes = mesh_sizes(config.parallel, ranks.count)
    ranks = ranks.on(sizes)
    for folder in (run.directory, run.directory / CHECKPOINTS):
        if folder.is_dir() and ranks.leads:
            remove_leftovers(folder)  # of a training that was killed, before its checkpoints are read
    ranks.wait()
    source, notes, damaged = _newest(run, ranks)
    before = None if source is None else _read(run, source)
    precision, peak, moved = _adapt(chosen, device, ranks, resumed=before is not None)
    weights = InitialWeights(run.directory, config.model, train, chosen, resumed=before is not None)
    model = weights.build(device) if ranks.count == 1 else weights.build_empty(device)
    by_onednn = chosen.onednn if has_onednn() else ()
    use_products(model, by_onednn)
    if train.checkpoint_activations:
        if chosen.compile and not can_compile(model):
            raise HeddleError(
                f"{run.directory}: checkpoint_activations cannot be compiled here: a custom module has buffers"
            )
        checkpoint_activations(model)
    parts = weights.divide(model, config.parallel, sizes, precision, device) if ranks.count > 1 else None
    optimizer = Optimizer(model, train, chosen.learning_rate, precision, by_onednn, parts)
    averages = {} if before is None else _restore(before, model, optimizer)
    task = run.task()
    eager = task.minimised(model, train)  # after the model is in its working precision
    return Session(
        run=run,
        opening=ResumeReport(source, notes, damaged, precision, peak, moved),
        train=train,
        learning_rate=chosen.learning_rate,
        warmup=chosen.warmup,
        steps=chosen.steps,
        model=model,
        optimizer=optimizer,
        task=task,
        eager=eager,
        objective=_objective(eager, chosen.compile, parts),
        step=0 if before is None else int(before.state["step"]),
        ranks=ranks,
        ema=moving_average(train, optimizer, averages),
        best=None if before is None else restore(before.state, train, chosen),
        saver=_saver(train, ranks),
    )


def _objective(eager: CrossEntropy, compiled: bool, parts: Parts | None) -> Callable[[Batch], Loss]:
    """The objective that steps call."""
    if parts is None:
        return compile_objective(eager) if compiled else eager
    return parts.wrap(compile_blocks(eager) if compiled else eager)


def _saver(train: TrainConfig, ranks: Ranks) -> Any:  # a Saver, or None
    """Saves the checkpoints of several processes; None: this one is alone."""
    if ranks.count == 1:
        return None
    from heddle.parallel.saving import Saver

    return Saver(train.start_timeout)


@torch.no_grad()
def _restore(saved: SavedState, model: Transformer, optimizer: Optimizer) -> dict[str, Tensor]:
    """Give the model and its optimizer what a checkpoint has, or this process's parts; return the moving average, if it has one."""
    parts = optimizer.parts
    read, read_state = (Weights.__getitem__,) * 2 if parts is None else (parts.read, parts.read_state)
    masters = {key.removeprefix(MASTER): key for key in saved.optimizer if key.startswith(MASTER)}
    held = {**dict(model.named_buffers()), **optimizer.masters}
    for name in filter(held.__contains__, saved.model):  # a user's module may name one twice
        key = masters.get(name)
        held[name].copy_(read(saved.model, name) if key is None else read_state(saved.optimizer, key))
    optimizer.refresh()
    moments = (key for key in saved.optimizer if not key.startswith(MASTER))
    optimizer.load_state({key: read_state(saved.optimizer, key) for key in moments})
    return {name: read(saved.model, name) for name in masters}


def _newest(run: OpenedRun, ranks: Ranks) -> tuple[Path | None, list[str], list[str]]:
    """The newest valid checkpoint, the newer ones that are damaged, and what is wrong with published weights; rank 0 reads them."""
    answer = ""
    if ranks.leads:
        source, notes = newest_valid(run.directory)
        answer = json.dumps([source and source.name, notes, damage(run.directory)])
    name, notes, damaged = json.loads(ranks.share(answer))
    return name and run.directory / CHECKPOINTS / name, notes, damaged


def _adapt(chosen: Chosen, device: torch.device, ranks: Ranks, resumed: bool) -> tuple[str, float, list[str]]:
    """The precision to compute in, its peak, and what differs from where the run started. Also sets the threads."""
    chosen_precision, peak, there, moved = chosen.precision, chosen.peak, cores(), []
    torch.set_num_threads(max(1, min(chosen.threads, there) // ranks.local))
    if chosen.threads > there:
        moved.append(f"{chosen.threads} threads were chosen, but this machine has {pluralize(there, 'core')}")
    # A new run was measured here, or its user chose the precision.
    precision: str = usable_precision(chosen_precision, device) if resumed else chosen_precision
    if precision != chosen_precision:
        moved.append(f"{chosen_precision} is over twice as slow as {precision} here, so {precision} is used")
        peak = peak_rate(DTYPES[precision], device)
    if chosen.onednn and not has_onednn():
        moved.append("oneDNN computed some of its products, but this build of torch has no oneDNN")
    return precision, peak, moved


def _read(run: OpenedRun, checkpoint: Path) -> SavedState:
    """Read a checkpoint; one that does not belong to the run's other files is refused."""
    if resume_identity(read_config(checkpoint)) != resume_identity(run.config):
        raise HeddleError(
            f"{run.directory / CONFIG} is not the one that {checkpoint.name} was trained with; "
            f"restore it: cp {checkpoint / CONFIG} {run.directory / CONFIG}"
        )
    before = open_state(checkpoint)
    if before.state.get("data") != run.store.sources:
        raise HeddleError(f"{run.directory}: data/ is not what {checkpoint.name} was trained on; train a new run")
    model = skeleton(run.config.model, run.train)
    expected = model.state_dict() if run.train.lora is None else trained_state(model, run.train)
    compare(before.model.specs, specs_of(expected), checkpoint)
    return before
