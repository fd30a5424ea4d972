"""Pipeline parallelism: the blocks of a stack divided among processes, which hand micro-batches on (Huang et al. 2019).

torch.distributed.pipelining orders what each process computes, and sends vectors and their gradients. A stage is the model without
the blocks of other stages: the first has the embedding and the entry, the last the final norm, the head and the loss.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from heddle.config.parallel import ParallelConfig
from heddle.data.batch import Batch
from heddle.model.precision import DTYPES
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.nn.moe import MoE
from heddle.nn.output import Output
from heddle.parallel.mesh import STAGES, cut_layers
from heddle.parallel.parts import Objective, Parts
from heddle.parallel.sharding import Shards, cast_vectors, shard_model
from heddle.tasks.objective import CrossEntropy, Loss

# How each schedule is made of a process's stages and the number of micro-batches.
SCHEDULES: dict[str, Callable[..., Any]] = {
    "1f1b": lambda stages, *others, **more: Schedule1F1B(*stages, *others, **more),
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
TABLE = "embedding.weight"  # which a tied head reads too
EVERY = -1  # in place of the stage of a parameter that every stage has


def divide(
    model: Transformer, config: ParallelConfig, sizes: dict[str, int], precision: str, accumulate: int = 1
) -> Parts:
    """Divide a model among processes: its layers among those of `pipeline`, and each parameter among those of the other axes."""
    kind = Stages if config.pipeline > 1 else Shards
    return kind(model, config, sizes, precision, accumulate)


def stage_of(name: str, layers: Sequence[range]) -> int:
    """The stage that has a parameter or buffer; `EVERY` for the tables of relative positions, which the blocks share.

    Args:
        layers: those of each stage.
    """
    if (block := re.match(r"(?:encoder|decoder)\.blocks\.(\d+)\.", name)) is not None:
        return next(stage for stage, own in enumerate(layers) if int(block[1]) in own)
    if re.match(r"(?:encoder|decoder)\.relative\.", name):
        return EVERY
    return 0 if re.match(r"embedding\.|(?:encoder|decoder)\.entry\.", name) else len(layers) - 1


class Skipped(nn.Module):
    """In place of a block of another stage."""

    def forward(self, x: Tensor, *others: Any) -> Output:
        return Output(x)


class Carried(nn.Module):
    """In place of the entry: the vectors that the stage before has sent.

    Attributes:
        vectors: of the micro-batch to compute.
    """

    vectors: Tensor

    def check_types(self, types: Tensor | None, shape: tuple[int, ...]) -> None:
        """The first stage checks them."""

    def forward(self, x: Tensor, layout: Layout, types: Tensor | None = None) -> Tensor:
        return self.vectors


class NoTable(nn.Module):
    """In place of a token table that is not read: its vectors are ignored.

    Args:
        width: of the vectors.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.empty(0, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros((), device=tokens.device).expand(*tokens.shape, self.weight.shape[1])


def with_modules(module: Any, **others: nn.Module | None) -> Any:
    """A module that shares everything with another one but these submodules."""
    twin = copy.copy(module)
    twin._modules = {**module._modules, **others}
    return twin


def view(model: Transformer, stage: int, stages: int) -> Transformer:
    """A stage of a model: the same modules without those of other stages."""
    stack, name = model.last_stack(), model.config.last()[0]
    own = cut_layers(len(stack.blocks), stages)[stage]
    blocks = [block if index in own else Skipped() for index, block in enumerate(stack.blocks)]
    others: dict[str, nn.Module | None] = {"blocks": nn.ModuleList(blocks)}
    ends: dict[str, nn.Module | None] = {}
    if stage > 0:
        others["entry"] = Carried()
        if stage < stages - 1 or not tied(model):
            ends["embedding"] = NoTable(stack.width)
    if stage < stages - 1:
        others["final_norm"], ends["head"] = nn.Identity(), None
    made: Transformer = with_modules(model, **{name: with_modules(stack, **others)}, **ends)
    return made


def tied(model: Transformer) -> bool:
    """Whether the head scores by the token table."""
    return getattr(model.config.head, "tied", False)


@dataclass
class Step:
    """What the stages of a process compute in a step.

    Attributes:
        objective: to be computed with the last stage.
        batches: the micro-batches.
        share: what is minimised is divided by it.
        plain: the sum of the micro-batches' plain losses.
        loads: for each stage, the sums of its mixtures' loads.
    """

    objective: CrossEntropy
    batches: Sequence[Batch]
    share: Tensor
    plain: list[Tensor] = field(default_factory=list)
    loads: dict[int, list[Tensor]] = field(default_factory=dict)

    def count(self, stage: int, loads: Sequence[Tensor]) -> None:
        """Add the loads of a micro-batch."""
        there = self.loads.get(stage)
        self.loads[stage] = list(loads) if there is None else [a + b for a, b in zip(there, loads, strict=True)]


class Stage(nn.Module):
    """A stage of a pipeline: from the vectors of the one before, and the sum of its routers' terms, to the next one's or the loss.

    Args:
        model: see `view`.
        number: of the stage.
        stages: how many there are.
        routed: whether routers' terms are handed on.
    """

    def __init__(self, model: Transformer, number: int, stages: int, routed: bool) -> None:
        super().__init__()
        self.model, self.number, self.first, self.last = model, number, number == 0, number == stages - 1
        self.routed = routed
        self.step: Step | None = None

    def forward(self, *carried: Tensor, number: Tensor) -> Any:
        """The output for micro-batch `number`."""
        step = self.step
        assert step is not None
        batch, terms = step.batches[int(number)], carried[1] if self.routed and carried else 0.0
        if not self.first:
            entry: Any = self.model.last_stack().entry
            entry.vectors = carried[0]
        if self.last:
            loss: Loss = with_modules(step.objective, model=self.model)(batch)
            step.plain.append(loss.plain)
            step.count(self.number, loss.loads)
            return (loss.total + loss.extra + terms).sum() / step.share
        hidden, routings = self.model(batch.tokens, batch.layout, types=batch.types)
        step.count(self.number, [routing.load for routing in routings])
        own = sum((routing.terms for routing in routings), hidden.new_zeros((), dtype=torch.float32))
        hidden = hidden.contiguous()
        return (hidden, own.reshape(1) + terms) if self.routed else hidden


class StageOnMesh(PipelineStage):
    """A stage as torch.distributed.pipelining knows it, which sums the gradients of sharded weights in fp32."""

    def backward_weight_one_chunk(self, *arguments: Any, **keywords: Any) -> None:
        """The gradients of weights alone, which come too late for the hooks with which FSDP sums in fp32."""
        super().backward_weight_one_chunk(*arguments, **keywords)
        for module in self.submod.modules():
            if isinstance(module, FSDPModule):
                state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
                for group in state._fsdp_param_groups:
                    group.post_backward()


class Stages(Shards):
    """The stages that this process has, each sharded among the processes of the mesh's other axes."""

    def shard(self, config: ParallelConfig, precision: str) -> None:
        """Leave this process its stages: other parameters become empty."""
        model, mesh = self.model, self.every["pipeline"]
        self.pipeline, self.place_of, self.processes = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self.schedule, self.dtype = config.schedule, DTYPES[precision]
        self.stages = self.processes * STAGES[config.schedule]
        self.layers = cut_layers(len(model.last_stack().blocks), self.stages)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        routers = {name: module.router for name, module in model.named_modules() if isinstance(module, MoE)}
        self.mixtures = [(self.stage(f"{name}."), len(router.weight)) for name, router in routers.items()]
        self.tied = tied(model)
        ends = self.every.mesh.flatten(1)[[0, -1]].T.tolist() if self.tied else []
        self.ends = dist.new_subgroups_by_enumeration(ends)[0] if ends else None
        self._leave()
        numbers = range(self.place_of, self.stages, self.processes)
        self.own = [Stage(view(model, each, self.stages), each, self.stages, bool(routers)) for each in numbers]
        self.roots = self.own
        entry = model.last_stack().entry
        if precision != "fp32" and self.place_of > 0:
            entry.register_forward_pre_hook(partial(cast_vectors, self.dtype))  # the whole model begins there too
        relative = list(model.last_stack().relative.parameters())
        for each in self.own:
            shard_model(each, self.mesh, precision, relative, once=True)  # the gradients of weights come late
        self.made: tuple[tuple[int, ...], Any] | None = None

    def _leave(self) -> None:
        """Empty the parameters of other processes, whose blocks hand on what they are given."""
        for name, parameter in list(self.model.named_parameters()):
            if not self.has(name):
                path, _, leaf = name.rpartition(".")
                nothing = parameter.new_empty((0,) * parameter.dim())
                setattr(
                    self.model.get_submodule(path), leaf, nn.Parameter(nothing, requires_grad=parameter.requires_grad)
                )
        blocks: Sequence[Any] = list(self.model.last_stack().layers())
        for stage, layers in enumerate(self.layers):
            for number in layers if stage % self.processes != self.place_of else ():
                blocks[number].forward = Skipped().forward

    def stage(self, name: str) -> int:
        """The stage that has a parameter or buffer, or the modules whose name begins so."""
        return stage_of(name, self.layers)

    def owner(self, name: str) -> int:
        """The process of the pipeline that saves its part of a parameter or buffer."""
        return max(self.stage(name), 0) % self.processes

    def saves(self, name: str) -> bool:
        """Whether this process saves its part of a parameter, and of what has its shape."""
        return self.owner(name) == self.place_of

    def has(self, name: str) -> bool:
        """Whether one of this process's stages computes with a parameter."""
        reads = self.tied and name == TABLE and self.place_of == self.processes - 1
        return self.saves(name) or reads or self.stage(name) == EVERY

    def copies(self, name: str) -> int:
        """How many processes hold the same part of a parameter."""
        stages = self.processes if self.stage(name) == EVERY else 2 if self.tied and name == TABLE else 1
        return super().copies(name) * stages

    def wrap(self, objective: Objective) -> Objective:
        """The objective, which the last stage computes."""
        return objective

    def backward(self, objective: Objective, batches: Sequence[Batch], share: Tensor) -> Iterator[Loss]:
        """The loss of a step, of all micro-batches together, after their passes in the order of the schedule."""
        assert isinstance(objective, CrossEntropy)
        step = Step(objective, batches, share)
        for each in self.own:
            each.step = step
        numbers = torch.arange(len(batches))
        try:
            self._schedule(batches[0], len(batches)).step(number=numbers, target=numbers, return_outputs=False)
        except RuntimeError as error:
            raise error.__cause__ or error from None  # torch says for which stage
        finally:
            for each in self.own:
                each.step = None
        self.calls += len(batches)
        yield self._joined(step)

    def _joined(self, step: Step) -> Loss:
        """What all stages know of a step, on each of them."""
        here = self.model.device
        plain = sum(step.plain, torch.zeros((), device=here))
        own = {number: iter(loads) for number, loads in step.loads.items()}
        loads = [
            next(own[stage]) if stage in own else torch.zeros(experts, dtype=torch.int64, device=here)
            for stage, experts in self.mixtures
        ]
        flat = torch.cat([each.double().flatten() for each in (plain, *loads)])
        dist.all_reduce(flat, group=self.pipeline)
        first, *others = flat.split([1, *(experts for _, experts in self.mixtures)])
        nothing = torch.zeros((), device=here)
        counted = tuple(each.to(torch.int64) for each in others)
        return Loss(nothing, first[0].to(plain.dtype), nothing, nothing, counted)

    def _schedule(self, batch: Batch, micro_batches: int) -> Any:
        """torch's schedule for micro-batches of one shape; that of the last step, if it had the same."""
        rows, width = batch.tokens.shape
        shape = (rows, width, micro_batches)
        if self.made is None or self.made[0] != shape:
            meta = partial(torch.empty, device="meta", requires_grad=True)
            vectors = (meta(rows, width, self.model.config.dim, dtype=self.dtype),)
            between = (*vectors, meta(1)) if self.mixtures else vectors
            stages = [
                StageOnMesh(
                    each, each.number, self.stages, self.model.device,
                    input_args=() if each.first else between,
                    output_args=(meta(()),) if each.last else between,
                    group=self.pipeline,
                )
                for each in self.own
            ]  # fmt: skip
            made = SCHEDULES[self.schedule](stages, micro_batches, loss_fn=_minimised, scale_grads=False)
            self.made = shape, made
        return self.made[1]

    @torch.no_grad()
    def collect(self) -> None:
        """Give each master the gradient of its part, summed over the stages that have the parameter."""
        super().collect()
        for name in self.shapes:
            group = self.pipeline if self.stage(name) == EVERY else self.ends if name == TABLE else None
            master = self.masters[name]
            if group is not None and self.parameters[name].requires_grad and self.has(name):
                master.grad = torch.zeros_like(master) if master.grad is None else master.grad
                dist.all_reduce(master.grad, group=group)

    def norms(self, names: tuple[str, ...], each: Tensor) -> tuple[tuple[str, ...], Tensor]:
        """The names and norms of whole tensors [P] of all stages from those of this process's parts."""
        own = {name: norm.square() / self.copies(name) for name, norm in zip(names, each.unbind(), strict=True)}
        learned = tuple(name for name, parameter in self.parameters.items() if parameter.requires_grad)
        squares = torch.stack([own.get(name, each.new_zeros(())) for name in learned])
        dist.all_reduce(squares)
        return learned, squares.sqrt()

    @torch.no_grad()
    def whole(self, name: str, part: Tensor) -> Tensor:
        """A whole tensor from the parts of a parameter, or of what has its shape; all processes call this."""
        shape = self.shapes.get(name, part.shape)
        tensor = super().whole(name, part).contiguous() if self.has(name) else part.new_empty(shape)
        dist.broadcast(tensor, group=self.pipeline, group_src=self.owner(name))
        return tensor

    def region(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where this process's part lies in a parameter, or in a tensor of this shape for it."""
        if name in self.shapes and not self.has(name):
            return (slice(0, 0),) * len(shape)
        return super().region(name, shape)

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        """Inside the `with` block, every process that calls the model gets what the whole model computes, without gradients.

        All of them have the ends of the model, and compute these. The last block of a stage sends its output to all.
        """
        blocks = self.model.last_stack().blocks
        with super().whole_model(), ExitStack() as after:
            for name in self.shapes:
                if ".blocks." not in name and self.stage(name) != EVERY:
                    self._put(name, after)
            for stage, layers in enumerate(self.layers):
                hook = blocks[layers[-1]].register_forward_hook(partial(self._sent, stage % self.processes))
                after.callback(hook.remove)
            yield

    def _put(self, name: str, after: ExitStack) -> None:
        """Give the model a whole parameter until `after` is closed."""
        path, _, leaf = name.rpartition(".")
        parameters = self.model.get_submodule(path)._parameters
        after.callback(parameters.__setitem__, leaf, parameters[leaf])
        parameters[leaf] = nn.Parameter(self.whole(name, self.masters[name].detach()), requires_grad=False)

    def _sent(self, process: int, block: nn.Module, arguments: Any, output: Output) -> Output:
        """The output of a block, from the process that has computed it."""
        hidden = output.hidden.contiguous()
        dist.broadcast(hidden, group=self.pipeline, group_src=process)
        return output._replace(hidden=hidden)


def _minimised(output: Tensor, number: Tensor) -> Tensor:
    """What the last stage returns."""
    return output
