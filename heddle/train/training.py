"""A training, wherever its data and its weights are kept: its steps, its evaluations, and the weights to use."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from traceback import clear_frames

import torch
from torch import Tensor

from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.errors import HeddleError, OutOfMemory, pluralize, ran_out_of_memory
from heddle.model.lora import A, B, adapted, is_adapter, merge
from heddle.model.roles import layer_of
from heddle.model.transformer import Transformer
from heddle.native.cores import share_cores
from heddle.nn.moe import MoE
from heddle.parallel.collectives import Collectives
from heddle.parallel.parts import Parts
from heddle.parallel.ranks import Ranks
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.tasks.task import Task, tokens_read
from heddle.train.ahead import Ahead
from heddle.train.diagnose import first_bad_layer
from heddle.train.ema import MovingAverage
from heddle.train.evaluate import Evaluation, evaluate
from heddle.train.expert_load import load_statistics
from heddle.train.model_selection import BestSoFar, update
from heddle.train.optimizer import Optimizer
from heddle.train.report import Report
from heddle.train.runtime import Heap, deterministic, in_use, seed_step
from heddle.train.schedule import factor
from heddle.train.step import train_step
from heddle.weights.adapter import Adapter, fingerprint

Reader = Callable[[Report], None]


class StopTraining(Exception):
    """Raise it in a reader to end the training after this step, as if it had been the last: its weights are scored and kept."""


class NotFinite(HeddleError):
    """The loss or its gradient became NaN or infinite, so training stopped with the weights of the step before."""


@dataclass(kw_only=True)
class Training:
    """Everything that steps and evaluations use. `Session` adds the files of a run; `fit` uses it as it is.

    Attributes:
        train: the settings.
        model: the model, in the working precision.
        optimizer: the optimizer, with the fp32 masters.
        task: what is learned.
        eager: the objective, uncompiled.
        objective: the objective that steps call, compiled if so chosen; assign a wrapper here to wrap it.
        learning_rate: the highest rate of AdamW or SGD.
        warmup: steps over which learning rates rise.
        steps: optimizer steps in all.
        step: steps done.
        ranks: this process among those that train together.
        ema: the moving average of the weights, if there is one.
        best: the evaluation with the lowest validation loss so far, with `patience`.
        ended: whether a reader has asked to end the training.
        merged: whether adapters that are still there have been added to the weights.
        heap: gives memory back where it has come to be in pieces.
    """

    train: TrainConfig
    model: Transformer
    optimizer: Optimizer
    task: Task
    eager: CrossEntropy
    objective: Callable[[Batch], Loss]
    learning_rate: float
    warmup: int
    steps: int
    step: int = 0
    ranks: Ranks = field(default_factory=Ranks)
    ema: MovingAverage | None = None
    best: BestSoFar | None = None
    ended: bool = False
    merged: bool = False
    heap: Heap = field(default_factory=Heap)

    def __post_init__(self) -> None:
        named = self.model.named_modules()
        self.mixtures = [layer_of(name) for name, module in named if isinstance(module, MoE)]
        self.make = partial(_rows, self.task, self.ranks)
        ahead = self.model.device.type != "cpu" and self.task.repeats
        self.ahead = Ahead(self.make, self.steps) if ahead else None
        self.collectives = Collectives()

    def batch(self) -> Batch:
        """This rank's rows, or its tokens of them, of the next step's batch, on the model's device."""
        batch = self.make(self.step) if self.ahead is None else self.ahead.get(self.step)
        parts = self.optimizer.parts
        batch = batch if parts is None else parts.cut(batch)
        try:
            return batch.to(self.model.device)
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            raise OutOfMemory(self.too_large(batch), self.last_good()) from None

    def advance(self) -> Report:
        """Do one step.

        Raises:
            HeddleError: the loss or the gradient became NaN or infinite; nothing was updated.
            OutOfMemory: the step does not fit into memory; nothing was updated if `optimizer.whole`.
        """
        share_cores()
        began = time.perf_counter()
        if not self.model.training:  # naming every module takes a hundredth of a short step
            self.model.train()
        seed_step(self.train.seed, self.step, self.ranks.rank // self.ranks.of_tokens)
        fetching = time.perf_counter()
        batch, train = self.batch(), self.train
        waited = time.perf_counter() - fetching
        scale = factor(self.step, self.steps, self.warmup, train)
        try:
            watched = self.collectives.step() if self.ranks.count > 1 else nullcontext()
            with deterministic(train.deterministic), watched:
                loss, norm = train_step(
                    self.objective, self.optimizer, batch, train.accumulate, scale, train.clip, self.ranks.sum
                )
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            clear_frames(error.__traceback__)  # what the step has computed may be as large as the memory
            self.model.zero_grad(set_to_none=True)
            for each in self.optimizer.optimizers:
                each.zero_grad(set_to_none=True)
            raise OutOfMemory(self.too_large(batch), self.last_good()) from None
        if not (isfinite(loss) and isfinite(norm)):
            gradients = {name: master.grad for name, master in self.optimizer.masters.items()}
            layer = self.first_bad_layer(batch, gradients)
            where = f"first seen in the {layer}; batch of the {self.task.describe(self.task.examples(self.step))}"
            what = f"norm of the gradient is {norm}" if isfinite(loss) else f"loss is {loss}"
            raise self.not_finite(self.step + 1, f"{what} ({where})")
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step)
        self.heap.step()
        values = {"loss": loss, "gradient_norm": norm, "learning_rate": scale * self.learning_rate}
        layers = {f"gradient_norm/{layer}": value for layer, value in self.optimizer.norms.by_layer().items()}
        loads = dict(zip(self.mixtures, (load.tolist() for load in self.optimizer.loads), strict=True))
        seconds = (
            time.perf_counter() - began
        )  # reading numbers waited for a device to do all of the step, the update too
        tokens = tokens_read(batch) * self.ranks.token_count
        speed = {"tokens_per_second": tokens / seconds, "seconds": seconds, "data_seconds": waited, "memory": in_use()}
        if (collective := self.collectives.seconds) is not None:
            speed["collective_seconds"] = collective
        return Report(self.step, self.steps, {**values, **layers, **load_statistics(loads)}, speed, loads=loads)

    def evaluate(self, most: int | None) -> Evaluation:
        """Score the model as it is on what is held out, or on an even sample of about `most` targets."""
        with deterministic(self.train.deterministic), self.whole_model():
            return evaluate(self.model, self.task, most=most, ranks=self.ranks)

    def score(self, most: int | None) -> Evaluation:
        """Score the same sample of what is held out every time, with the weights to use.

        Raises:
            HeddleError: the loss is NaN or infinite.
        """
        with self.in_use():
            scored = self.evaluate(most)
            if not isfinite(scored.loss):
                layer = self.first_bad_layer(self.batch(), {})
                what = f"validation loss is {scored.loss} (first seen in the {layer})"
                raise self.not_finite(self.step, what)
        return scored

    def report(self, scored: Evaluation, sample: str | None = None) -> Report:
        """What readers hear of an evaluation."""
        values = {"validation_loss": scored.loss, "validation_error": scored.standard_error or 0.0, **scored.metrics}
        values |= scored.unscored_counts()  # every score comes with what it does not cover
        return Report(self.step, self.steps, values, {}, sample)

    def not_finite(self, step: int, what: str) -> NotFinite:
        """The error for a loss that is NaN or infinite."""
        return NotFinite(
            f"step {step}: {what}. Training stopped, {self.last_good()}; lower learning_rate or matrix_learning_rate"
        )

    def too_large(self, batch: Batch) -> str:
        """What to lower where the next step, with this batch of the rank's rows, does not fit into memory, in words."""
        rows, parts = len(batch.tokens), self.train.accumulate
        ways = [f"accumulate={more} (now {parts})" for more in range(parts + 1, rows + 1) if rows % more == 0][:1]
        ways += [] if self.train.checkpoint_activations else ["checkpoint_activations=true"]
        size = f"{pluralize(rows // parts, 'row')} of {batch.tokens.shape[-1]:,} tokens at a time"
        lower = ", ".join(ways) + ", or " if ways else ""
        return f"step {self.step + 1}: out of memory with {size}: use {lower}a smaller batch, context or model"

    def last_good(self) -> str:
        """What is left of a training that failed, in words."""
        state = "the weights" if self.optimizer.whole else "only some of the updates after the weights"
        return f"the model has {state} of step {self.step}"

    def weights(self) -> dict[str, Tensor]:
        """The weights to use now, and the buffers of a user's own modules: the masters or, with `ema`, their average.

        Of several processes that divide the model all must call this, and only the one that leads gets them.
        """
        parts, tensors = self.optimizer.parts, self.own_weights()
        if parts is None:
            return tensors
        whole = ((name, parts.whole(name, tensor)) for name, tensor in tensors.items())
        return {name: tensor for name, tensor in whole if self.ranks.leads}

    def own_weights(self) -> dict[str, Tensor]:
        """This process's part of the weights to use."""
        own = {**self.optimizer.masters, **({} if self.ema is None else self.ema.average)}
        tensors = {name: own.get(name, tensor).detach() for name, tensor in self.model.state_dict().items()}
        return {name: each for name, each in tensors.items() if not (self.merged and is_adapter(name))}

    def whole_model(self) -> AbstractContextManager[None]:
        """Inside the `with` block, the model computes whole, also if several processes divide its layers: all must call it."""
        return nullcontext() if self.optimizer.parts is None else self.optimizer.parts.whole_model()

    def first_bad_layer(self, batch: Batch, gradients: Mapping[str, Tensor | None]) -> str:
        """Where a value that is NaN or infinite was first seen, see `heddle.train.diagnose`."""
        with self.whole_model():
            return first_bad_layer(self.eager, batch, gradients)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the `with` block, the model has the weights to use."""
        if self.ema is None:
            yield
            return
        try:
            with self.ema.exchanged():
                self.optimizer.refresh()
                yield
        finally:
            self.optimizer.refresh()

    @torch.no_grad()
    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Give the model these weights to use, or this process's parts of them; training cannot continue from them."""
        held, self.ema, parts = {**self.model.state_dict(), **self.optimizer.masters}, None, self.optimizer.parts
        for name, tensor in tensors.items():
            held[name].copy_(tensor if parts is None else parts.part(name, tensor))
        self.optimizer.refresh()

    @torch.no_grad()
    def merge(self) -> Adapter | None:
        """Add what adapters learned to the weights and take them off the model; training cannot continue from there.

        Returns:
            What was learned, apart from the weights that stayed; None if there are no adapters.
        """
        lora = self.train.lora
        if lora is None:
            return None
        weights = self.weights()
        learned = {name: each.clone() for name, each in weights.items() if name not in self.optimizer.frozen}
        base = fingerprint({name: each for name, each in weights.items() if name not in learned})
        head = self.model.config.head if lora.head else None
        if (parts := self.optimizer.parts) is None:
            merge(self.model, self.optimizer.masters)
        else:
            self._merge_parts(parts)
        self.optimizer.refresh()
        return Adapter(learned, lora.alpha / lora.rank, base, head)

    def _merge_parts(self, parts: Parts) -> None:
        """Add what adapters learned to this process's parts of the weights. They stay, without effect, since engines have them."""
        masters, self.merged = self.optimizer.masters, True
        for name, layer in adapted(self.model):
            a, b = (parts.whole(f"{name}.{each}", masters[f"{name}.{each}"]) for each in (A, B))
            rows, columns = parts.region(f"{name}.weight", (len(b), a.shape[1]))
            masters[f"{name}.weight"].addmm_(b[rows], a[:, columns], alpha=layer.factor)
            masters[f"{name}.{B}"].zero_()

    def update_best(self, loss: float) -> bool:
        """Note a validation loss of this step; whether it is the lowest so far, with `patience`."""
        if self.train.patience is None:
            return False
        self.best = update(self.best, self.step, loss, self.steps)
        return self.best.waited == 0

    @property
    def stopped_early(self) -> bool:
        """Whether `patience` or a reader has ended the training before its last step."""
        patience, best = self.train.patience, self.best
        waited = patience is not None and best is not None and best.waited >= patience
        return (waited or self.ended) and self.step < self.steps

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and after the last, happens after this one."""
        return self.step % every == 0 or self.step == self.steps


def _rows(task: Task, ranks: Ranks, step: int) -> Batch:
    """A rank's rows of a step's batch, on the host."""
    return task.batch(task.examples(step).part(ranks.data_rank, ranks.data_count))


def moving_average(train: TrainConfig, optimizer: Optimizer, saved: Mapping[str, Tensor]) -> MovingAverage | None:
    """The moving average of what is trained, if the settings ask for one, with the values of a checkpoint."""
    if train.ema is None:
        return None
    trained = {name: master for name, master in optimizer.masters.items() if name not in optimizer.frozen}
    ema = MovingAverage(trained, train.ema)
    for name, value in saved.items():
        ema.average[name].copy_(value)
    return ema


def tell(readers: Sequence[Reader], report: Report) -> bool:
    """Call every reader with a report; whether one of them asks to end the training."""
    ended = False
    for reader in readers:
        try:
            reader(report)
        except StopTraining:
            ended = True
    return ended
