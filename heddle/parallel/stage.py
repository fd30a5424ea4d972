"""A stage of a pipeline: a view of a model without the blocks of other stages, and what it computes in a step."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage

from heddle.data.batch import Batch
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.nn.output import Output
from heddle.parallel.mesh import cut_layers
from heddle.tasks.objective import Loss


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


def in_place_of(module: nn.Module, other: nn.Module) -> nn.Module:
    """A module with another one's hooks, which divide tokens between the two ends of a stack."""
    other._forward_hooks = module._forward_hooks
    return other


def view(model: Transformer, stage: int, stages: int) -> Transformer:
    """A stage of a model: the same modules without those of other stages."""
    stack, name = model.last_stack(), model.config.last()[0]
    own = cut_layers(len(stack.blocks), stages)[stage]
    blocks = [block if index in own else Skipped() for index, block in enumerate(stack.blocks)]
    others: dict[str, nn.Module | None] = {"blocks": nn.ModuleList(blocks)}
    ends: dict[str, nn.Module | None] = {}
    if stage > 0:
        others["entry"] = in_place_of(stack.entry, Carried())
        if stage < stages - 1 or not tied(model):
            ends["embedding"] = NoTable(stack.width)
    if stage < stages - 1:
        others["final_norm"], ends["head"] = in_place_of(stack.final_norm, nn.Identity()), None
    made: Transformer = with_modules(model, **{name: with_modules(stack, **others)}, **ends)
    return made


def tied(model: Transformer) -> bool:
    """Whether the head scores by the token table."""
    return getattr(model.config.head, "tied", False)


@dataclass
class Step:
    """What the stages of a process compute in a step.

    Attributes:
        objective: of a model, to be computed with the last stage.
        batches: the micro-batches.
        share: what is minimised is divided by it.
        current: the number of the micro-batch that a stage computes forward.
        plain: the sum of the micro-batches' plain losses.
        loads: for each stage, the sums of its mixtures' loads.
    """

    objective: nn.Module
    batches: Sequence[Batch]
    share: Tensor
    current: int = 0
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

    def forward(self, *carried: Tensor) -> Any:
        """The output for the current micro-batch."""
        step = self.step
        assert step is not None
        batch, terms = step.batches[step.current], carried[1] if self.routed and carried else 0.0
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

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **keywords: Any) -> Any:
        """The output for a micro-batch, which the stage reads by its number."""
        stage: Any = self.submod
        stage.step.current = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *arguments, **keywords)

    def backward_weight_one_chunk(self, *arguments: Any, **keywords: Any) -> None:
        """The gradients of weights alone, which come too late for the hooks with which FSDP sums in fp32."""
        super().backward_weight_one_chunk(*arguments, **keywords)
        for module in self.submod.modules():
            if isinstance(module, FSDPModule):
                state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
                for group in state._fsdp_param_groups:
                    group.post_backward()

    def received(self) -> list[Tensor]:
        """The tensors that take the vectors and the gradients of each micro-batch, from step to step."""
        there = (*self.args_recv_info.values(), *self.grad_recv_info.values())
        return [each.buffer for infos in there for each in infos if each.buffer is not None]
