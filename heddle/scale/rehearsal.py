"""A training step of one process among many, on tensors without memory: what it holds, sends and computes.

It is the step of a run: the same model, sharding, loss and optimizer. Only the tensors are torch's fake ones, and the processes are
those of torch's fake backend, so that one process can be the first of thousands.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from heddle.account.forward import prefixes_for, source_for, without_values
from heddle.account.memory import fake
from heddle.account.repeats import Numbers, measured
from heddle.account.walk import stated
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch, counted_batch
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.checkpointing import checkpoint_activations
from heddle.model.groups import skeleton
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.parallel.experts import DividedExperts
from heddle.parallel.mesh import count_processes, mesh_sizes
from heddle.parallel.sharding import Shards, blocks_of
from heddle.scale.meter import Meter
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.train.ema import MovingAverage
from heddle.train.muon import STACK
from heddle.train.optimizer import Optimizer
from heddle.train.training import moving_average

FEW = 5  # equal blocks that are rehearsed: with fewer, one block's gathered parameters and gradients overlap with the ends
PHASES = ("forward", "loss", "backward", "end", "update")  # each is largest where it begins or ends, whatever the depth


@dataclass(frozen=True)
class Step:
    """A training step, to be rehearsed or measured.

    Attributes:
        model: the model, with the attention kernel of the device.
        train: the optimizer, the number of micro-batches, and whether activations are checkpointed.
        parallel: how processes divide the model.
        sizes: of the axes of the mesh.
        rows: rows of a micro-batch of one process.
        length: tokens of a row.
        precision: `fp32` or `bf16`.
    """

    model: TransformerConfig
    train: TrainConfig
    parallel: ParallelConfig
    sizes: dict[str, int]
    rows: int
    length: int
    precision: str

    @property
    def processes(self) -> int:
        """How many take the step."""
        return count_processes(self.sizes)

    def alone(self) -> "Step":
        """The same micro-batch of one process."""
        return replace(self, parallel=ParallelConfig(), sizes=mesh_sizes(ParallelConfig(), 1))


class Summed(nn.Module):
    """The sum of what a model returns, for one without scores of ids."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Loss:
        hidden, routings = self.model(batch.tokens, batch.layout, batch.source, batch.source_layout)
        total = hidden.float().sum()
        extra = sum((routing.terms for routing in routings), torch.zeros_like(total))
        return Loss(total, total.detach(), batch.weights.sum(), extra, tuple(routing.load for routing in routings))


class Balanced(DividedExperts):
    """Experts of which each gets as many tokens as the others: tensors without memory do not say how many."""

    def travels(self, load: Tensor, most: int) -> tuple[Tensor, list[int], list[int]]:
        processes = self.group.size()
        each = [most // processes + (number < most % processes) for number in range(processes)]
        return load.view(processes, -1), each, each


class Trainable:
    """A model with its optimizer and its objective, whole or divided among the processes of a mesh.

    Args:
        model: a model as it is trained, on real or fake tensors.
        step: what is done with it.
        micro_batches: of a step.
    """

    def __init__(self, model: Transformer, step: Step, micro_batches: int) -> None:
        self.model, self.micro_batches, train = model, micro_batches, step.train
        if train.checkpoint_activations:
            checkpoint_activations(model)
        parts: Shards | None = None
        if step.processes > 1:
            parts = Shards(model, step.parallel, step.sizes, step.precision, micro_batches)
        self.parts, self.optimizer = parts, Optimizer(model, train, 1e-3, step.precision, parts=parts)
        self.average: MovingAverage | None = moving_average(train, self.optimizer, {})
        whole = CrossEntropy(model) if isinstance(model.config.head, LanguageHeadConfig) else Summed(model)
        self.objective: Callable[[Batch], Loss] = whole if parts is None else parts.wrap(whole)

    def batch(self, rows: int, length: int) -> Batch:
        """A micro-batch in which every token is a target."""
        # Different tokens, so that routers choose different experts.
        tokens = (torch.arange(rows * length) % self.model.config.vocab_size).view(rows, length)
        source, layout = source_for(self.model, tokens), Layout.whole(rows, length, "cpu")
        parts = {
            "tokens": tokens,
            "layout": prefixes_for(self.model, tokens) or layout,
            "targets": torch.zeros(rows, length, dtype=torch.long),
            "weights": torch.ones(rows, length),
            "source": source,
            "source_layout": None if source is None else layout,
        }
        batch = counted_batch(parts, (length,) * rows)
        if self.parts is None:
            return batch
        cut = self.parts.cut(batch)
        return counted_batch(cut.parts(), cut.tokens.shape[1:] * rows)

    def remember(self) -> None:
        """Give the optimizers the state that they have after a step."""
        for master in self.optimizer.masters.values():
            master.grad = torch.zeros_like(master) if master.requires_grad else None
        self.update()

    def update(self) -> None:
        """The update of a step."""
        for optimizer in self.optimizer.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.optimizer.refresh()
        if self.average is not None:
            self.average.update(1)

    def held(self) -> Numbers:
        """Bytes of the parameters that this process has, of the working copies, of the optimizer's state and of the average."""
        copies, averages = self.optimizer.copies, {} if self.average is None else self.average.average
        return {
            "parameters": _bytes(self.optimizer.masters.values()),
            "copies": _bytes(working for working, _ in copies),
            "state": _bytes(self.optimizer.state().values()),
            "average": _bytes(averages.values()),
        }

    def gradients(self) -> int:
        """Bytes of the gradients of this process's parameters."""
        return _bytes(master.grad for master in self.optimizer.masters.values() if master.grad is not None)


def rehearse(step: Step, node: int = 1, gloo: bool = False) -> Numbers:
    """Bytes, FLOPs and communication of a step of the first process of a mesh.

    Args:
        step: the step.
        node: processes on a machine.
        gloo: whether gloo connects the processes, as on a CPU.

    Returns:
        Bytes by what they are for, `saved` for the backward pass by a micro-batch; the peak of each phase, `peak/loss`; `flops`;
        bytes that are sent, `sent/all-gather/link`, within layers `sent/layers/all-reduce/link`.
    """
    config, train = step.model, step.train

    def measure(variant: TransformerConfig) -> Numbers:
        with fake_processes(step.processes):
            return _rehearse(replace(step, model=variant), Meter(node, gloo))

    # Equal layers may be in different groups, so `measured` must not leave any out. Muon's stacks hold matrices of many blocks.
    few = FEW + (STACK // max(1, config.dim**2) if train.optimizer == "muon" else 0)
    return measure(config) if train.groups or train.lora is not None else measured(config, measure, few)


@contextmanager
def fake_processes(world: int) -> Iterator[None]:
    """Inside the block, this process is the first of so many; the others are not there.

    Raises:
        HeddleError: this process has joined others already.
    """
    if world == 1:
        yield
        return
    if dist.is_initialized():
        raise HeddleError("a plan for several processes is made by one: start it without torchrun")
    dist.init_process_group("fake", rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # torch remembers the groups of a mesh for the next equal one, and these are gone


def _rehearse(step: Step, meter: Meter) -> Numbers:
    mode, train = FakeTensorMode(), step.train
    unknown = stated(build(without_values(step.model, ()), "meta"), step.rows, step.length).unknown()
    model = fake(skeleton(without_values(step.model, unknown), train), mode)
    micro = min(train.accumulate, 2)  # the first one and the last one; those between are like the first
    # A mesh reads the numbers of its processes, which are not fake.
    with mode if step.processes == 1 else nullcontext():
        trainable = Trainable(model, step, micro)
    for module in model.modules():
        if isinstance(module, DividedExperts):
            divided: Any = module
            divided.__class__ = Balanced
    with mode:
        trainable.remember()
    watch_backward(model, meter)
    numbers = trainable.held()
    with mode, meter:
        meter.see((list(trainable.optimizer.masters.values()), trainable.optimizer.state()))
        meter.see([working for working, _ in trainable.optimizer.copies])
        meter.see([*model.buffers(), {} if trainable.average is None else trainable.average.average])
        parts = list[tuple[int, dict[str, int]]]()
        for _ in range(micro):
            before, sent = meter.flops, meter.sent.copy()
            micro_batch(trainable, trainable.batch(step.rows, step.length), meter)
            parts.append((meter.flops - before, _named(meter.sent - sent)))
        numbers["gradients"] = trainable.gradients()
        before, sent = meter.flops, meter.sent.copy()
        meter.enter("update")
        trainable.update()
    parts.append((meter.flops - before, _named(meter.sent - sent)))
    numbers["gathered"], numbers["saved"] = meter.gathered(), meter.held["loss"] - meter.held["forward"]
    numbers |= {f"peak/{phase}": meter.peaks[phase] for phase in PHASES}
    times = [train.accumulate - 1, 1, 1] if micro == 2 else [1, 1]
    numbers["flops"] = sum(count * flops for count, (flops, _) in zip(times, parts, strict=True))
    for number, (count, (_, each)) in enumerate(zip(times, parts, strict=True)):
        last = number == len(parts) - 1
        for name, size in each.items():
            key = f"sent/update/{name}" if last else f"sent/{name}"
            numbers[key] = numbers.get(key, 0) + count * size
    return numbers


def micro_batch(trainable: Trainable, batch: Batch, meter: Meter) -> None:
    """One forward and backward pass."""
    meter.enter("forward")
    loss = trainable.objective(batch)
    (loss.total + loss.extra).div(batch.weights.numel()).backward()
    del loss
    trainable.optimizer.collect()


def watch_backward(model: Transformer, meter: Meter) -> None:
    """Begin a phase of the backward pass after the last block's forward pass, after its backward pass, and before the first's."""
    first, *_ = blocks = list(blocks_of(model))

    def when_known(values: Any, phase: str) -> None:
        """Begin a phase once the gradient of a tensor among the values is known."""
        tensors = (each for each in values if isinstance(each, Tensor) and each.requires_grad)
        tensor = next(tensors, None)
        if tensor is not None:
            tensor.register_hook(lambda gradient: meter.enter(phase))

    def after_last(block: nn.Module, arguments: Any, output: Any) -> None:
        meter.enter("loss")
        when_known(arguments, "backward")

    def after_first(block: nn.Module, arguments: Any, output: Any) -> None:
        when_known(output if isinstance(output, tuple) else (output,), "end")

    blocks[-1].register_forward_hook(after_last)
    first.register_forward_hook(after_first)


def _named(sent: Any) -> dict[str, int]:
    return {"/".join(key): size for key, size in sent.items()}


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)
