"""A training step of one process among many, on tensors without memory: what it holds, sends and computes.

It is the step of a run: the same model, sharding, loss and optimizer. Only the tensors are torch's fake ones, and the processes are
those of torch's fake backend, so that one process can be any of thousands.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from heddle.account.forward import prefixes_for, source_for, without_values
from heddle.account.memory import fake
from heddle.account.repeats import Numbers, measured
from heddle.account.walk import stated
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch, counted_batch
from heddle.model.build import build
from heddle.model.checkpointing import checkpoint_activations
from heddle.model.groups import skeleton
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.parallel.experts import DividedExperts
from heddle.parallel.mesh import STAGES, count_processes, mesh_sizes
from heddle.parallel.parts import Parts
from heddle.parallel.pipeline import Stages, divide
from heddle.parallel.sharding import blocks_of
from heddle.scale.meter import Meter
from heddle.scale.schedules import StageAlone, fake_processes, in_stages, of_stage
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.train.ema import MovingAverage
from heddle.train.muon import STACK
from heddle.train.optimizer import Optimizer
from heddle.train.training import moving_average

# Micro-batches with which a pipeline of so many processes has long been full, and those of a further round.
FULL: dict[str, Callable[[int], tuple[int, int]]] = {
    "1f1b": lambda processes: (processes + 2, 1),
    "interleaved": lambda processes: (3 * processes, processes),
    "zero-bubble": lambda processes: (3 * processes, processes),
}
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

    @property
    def stages(self) -> int:
        """Into how many parts a pipeline divides the layers."""
        return self.sizes["pipeline"] * STAGES[self.parallel.schedule]

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
        parts: Parts | None = None
        if step.processes > 1:
            parts = divide(model, step.parallel, step.sizes, step.precision, micro_batches)
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
        parts = self.parts
        for name, master in self.optimizer.masters.items():
            here = not isinstance(parts, Stages) or parts.has(name)
            master.grad = torch.zeros_like(master) if master.requires_grad and here else None
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


def rehearse(step: Step, node: int = 1, gloo: bool = False, place: int = 0) -> Numbers:
    """Bytes, FLOPs and communication of a step of one process of a mesh.

    Args:
        step: the step.
        node: processes on a machine.
        gloo: whether gloo connects the processes, as on a CPU.
        place: of the process in the pipeline; on the other axes it is the first.

    Returns:
        Bytes by what they are for, `saved` for the backward pass by a micro-batch; the peak of each phase, `peak/loss`; `flops` and
        `kernels`; bytes that are sent, `sent/all-gather/link`, within layers `sent/layers/all-reduce/link`, to stages
        `sent/stages/send/link`.
    """
    train, pipeline = step.train, step.sizes["pipeline"]

    def take(variant: TransformerConfig, micro_batches: int) -> Numbers:
        same = train.model_copy(update={"accumulate": micro_batches})
        with fake_processes(step.processes, place * (step.processes // pipeline)):
            return _rehearse(replace(step, model=variant, train=same), Meter(node, gloo))

    def measure(variant: TransformerConfig) -> Numbers:
        """Once a pipeline is full, each further round of micro-batches adds as much as the one before."""
        full, each = FULL[step.parallel.schedule](pipeline)
        rounds = (train.accumulate - full) // each
        if pipeline == 1 or rounds <= 0:
            return take(variant, train.accumulate)
        most, fewer = take(variant, full), take(variant, full - each)
        return {key: size + rounds * (size - fewer.get(key, 0)) for key, size in most.items()}

    # Equal layers may be in different groups, so `measured` must not leave any out. Muon's stacks hold matrices of many blocks.
    few = FEW + (STACK // max(1, step.model.dim**2) if train.optimizer == "muon" else 0)
    stage = None if train.groups or train.lora is not None else of_stage(step.model, step.stages)
    if stage is None:
        return measure(step.model)
    return measured(stage, lambda variant: measure(in_stages(variant, step.stages)), few)


def _rehearse(step: Step, meter: Meter) -> Numbers:
    mode = FakeTensorMode()
    unknown = stated(build(without_values(step.model, ()), "meta"), step.rows, step.length).unknown()
    model = fake(skeleton(without_values(step.model, unknown), step.train), mode)
    # Of micro-batches in turn, the first one and the last one: those between are like the first.
    micro = step.train.accumulate if step.stages > 1 else min(step.train.accumulate, 2)
    # A mesh reads the numbers of its processes, which are not fake.
    with mode if step.processes == 1 else nullcontext():
        trainable = Trainable(model, step, micro)
    for module in model.modules():
        if isinstance(module, DividedExperts):
            divided: Any = module
            divided.__class__ = Balanced
    with mode:
        trainable.remember()
    numbers = trainable.held()
    with mode, meter:
        meter.see((list(trainable.optimizer.masters.values()), trainable.optimizer.state()))
        meter.see([working for working, _ in trainable.optimizer.copies])
        meter.see([*model.buffers(), {} if trainable.average is None else trainable.average.average])
        if step.stages > 1:
            # Gradients are summed over processes when the last micro-batch has passed, with nothing left to compute meanwhile.
            late = {"reduce-scatter": "update/", "all-reduce": "update/"}
            _count(numbers, meter, lambda: whole_step(trainable, step, meter), lambda kind: late.get(kind, ""))
        else:
            watch_backward(model, meter)
            for times in [step.train.accumulate - 1, 1][-micro:]:
                _count(
                    numbers,
                    meter,
                    lambda: micro_batch(trainable, trainable.batch(step.rows, step.length), meter),
                    times=times,
                )
        numbers["gradients"] = trainable.gradients()
        meter.enter("update")
        _count(numbers, meter, trainable.update, lambda kind: "update/")
    numbers["gathered"], numbers["saved"] = meter.gathered(), meter.held["loss"] - meter.held["forward"]
    numbers |= {f"peak/{phase}": meter.peaks[phase] for phase in PHASES}
    return numbers


def micro_batch(trainable: Trainable, batch: Batch, meter: Meter) -> None:
    """One forward and backward pass."""
    meter.enter("forward")
    loss = trainable.objective(batch)
    (loss.total + loss.extra).div(batch.weights.numel()).backward()
    del loss
    trainable.optimizer.collect()


def whole_step(trainable: Trainable, step: Step, meter: Meter) -> None:
    """The passes of all micro-batches, in the order of the pipeline's schedule."""
    stages, objective = trainable.parts, trainable.objective
    assert isinstance(stages, Stages)
    stages.kind = StageAlone
    for each in stages.own:
        each.register_forward_pre_hook(lambda *arguments: meter.enter("forward"))
        watch_backward(each, meter)
    batch = trainable.batch(step.rows * step.train.accumulate, step.length)
    for _ in stages.backward(objective, batch.split(step.train.accumulate), batch.weights.sum()):
        trainable.optimizer.collect()


def watch_backward(model: nn.Module, meter: Meter) -> None:
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


def _count(
    numbers: Numbers,
    meter: Meter,
    take: Callable[[], None],
    when: Callable[[str], str] = lambda kind: "",
    times: int = 1,
) -> None:
    """Add what `take` computes and sends, so many times; `when` says of a kind of sending what it is for."""
    before, started, sent = meter.flops, meter.kernels, meter.sent.copy()
    take()
    numbers["flops"] = numbers.get("flops", 0) + times * (meter.flops - before)
    numbers["kernels"] = numbers.get("kernels", 0) + times * (meter.kernels - started)
    for (kind, where), size in (meter.sent - sent).items():
        name = f"sent/{when(kind)}{kind}/{where}"
        numbers[name] = numbers.get(name, 0) + times * size


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)
