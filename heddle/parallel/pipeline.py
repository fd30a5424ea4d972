"""Pipeline parallelism: the blocks of a stack divided among processes, which hand micro-batches on (Huang et al. 2019).

torch.distributed.pipelining orders what each process computes, and sends vectors and their gradients. A stage is the model without
the blocks of other stages: the first has the embedding and the entry, the last the final norm, the head and the loss.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from heddle.config.parallel import ParallelConfig
from heddle.data.batch import Batch
from heddle.model.precision import DTYPES
from heddle.model.transformer import Transformer
from heddle.nn.moe import MoE
from heddle.nn.output import Output
from heddle.parallel.mesh import STAGES, cut_layers
from heddle.parallel.parts import Objective, Parts
from heddle.parallel.sharding import Shards, cast_vectors, shard_model
from heddle.parallel.stage import Skipped, Stage, StageOnMesh, Step, tied, view
from heddle.tasks.objective import Loss

# How each schedule is made of a process's stages and the number of micro-batches.
SCHEDULES: dict[str, Callable[..., Any]] = {
    "1f1b": lambda stages, *others, **more: Schedule1F1B(*stages, *others, **more),
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
TABLE = "embedding.weight"  # which a tied head reads too
EVERY = -1  # in place of the stage of a parameter that every stage has


def divide(
    model: Transformer,
    config: ParallelConfig,
    sizes: dict[str, int],
    precision: str,
    accumulate: int = 1,
    device: torch.device | None = None,
) -> Parts:
    """Divide a model among processes: its layers among those of `pipeline`, and each parameter among those of the other axes.

    Args: see `heddle.parallel.sharding.Shards`.
    """
    kind = Stages if config.pipeline > 1 else Shards
    return kind(model, config, sizes, precision, accumulate, device)


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


class Stages(Shards):
    """The stages that this process has, each sharded among the processes of the mesh's other axes.

    Attributes:
        kind: what a stage becomes for torch.
    """

    kind: Callable[..., StageOnMesh] = StageOnMesh

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
        self.on_mesh: Sequence[StageOnMesh] = ()

    def _leave(self) -> None:
        """Empty the parameters of other processes, whose blocks hand on what they are given."""
        for name, parameter in list(self.model.named_parameters()):
            if not self.has(name):
                path, _, leaf = name.rpartition(".")
                nothing = torch.empty((0,) * parameter.dim(), device=parameter.device)
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
        assert isinstance(objective, nn.Module)
        step = Step(objective, batches, share)
        for each in self.own:
            each.step = step
        numbers = torch.arange(len(batches))
        try:
            self._schedule(batches[0], len(batches)).step(target=numbers, return_outputs=False)
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
            self.on_mesh = [
                self.kind(
                    each, each.number, self.stages, self.model.device,
                    input_args=() if each.first else between,
                    output_args=(meta(()),) if each.last else between,
                    group=self.pipeline,
                )
                for each in self.own
            ]  # fmt: skip
            made = SCHEDULES[self.schedule](self.on_mesh, micro_batches, loss_fn=_minimised, scale_grads=False)
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
        """Give the model a whole parameter, or its own rows of it, until `after` is closed."""
        path, _, leaf = name.rpartition(".")
        parameters = self.model.get_submodule(path)._parameters
        after.callback(parameters.__setitem__, leaf, parameters[leaf])
        whole, rows = self.whole(name, self.masters[name].detach()), self.rows.get(name)
        parameters[leaf] = nn.Parameter(whole if rows is None else rows.part(whole), requires_grad=False)

    def _sent(self, process: int, block: nn.Module, arguments: Any, output: Output) -> Output:
        """The output of a block, from the process that has computed it."""
        hidden = output.hidden.contiguous()
        dist.broadcast(hidden, group=self.pipeline, group_src=process)
        return output._replace(hidden=hidden)


def _minimised(output: Tensor, number: Tensor) -> Tensor:
    """What the last stage returns."""
    return output
