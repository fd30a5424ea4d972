"""The schedules of pipelines, as torch orders them: what each process computes, in order, and how long it waits."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from heddle.account.repeats import with_layers
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.parallel.mesh import STAGES
from heddle.parallel.pipeline import SCHEDULES
from heddle.parallel.stage import StageOnMesh

# How long a forward pass takes, a backward pass, and its two halves, for inputs and for weights; checkpointing adds one forward.
LENGTHS = {"F": 1, "B": 2, "I": 1, "W": 1}


class Pass(NamedTuple):
    """A pass of a micro-batch through a stage, of a kind of `LENGTHS`."""

    kind: str
    stage: int
    number: int


def of_stage(config: TransformerConfig, stages: int) -> TransformerConfig | None:
    """The model with the layers of one of so many stages; None: other stages have other layers."""
    name, stack = config.last()
    each = stack.depth // stages
    if any(block is not stack.blocks[number % each] for number, block in enumerate(stack.blocks)):
        return None
    return with_layers(config, name, stack, list(range(each)))


def in_stages(config: TransformerConfig, stages: int) -> TransformerConfig:
    """The model with the layers of `config` in each of so many stages."""
    name, stack = config.last()
    return with_layers(config, name, stack, list(range(stack.depth)) * stages)


@contextmanager
def fake_processes(world: int, rank: int = 0) -> Iterator[None]:
    """Inside the block, this process is one of so many; the others are not there.

    Raises:
        HeddleError: this process has joined others already.
    """
    if world == 1:
        yield
        return
    if dist.is_initialized():
        raise HeddleError("a plan for several processes is made by one: start it without torchrun")
    dist.init_process_group("fake", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # torch remembers the groups of a mesh for the next equal one, and these are gone


class Sent:
    """A tensor that was sent, which lives as long as somebody may wait for its arrival."""

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup, group_src: int, tag: int) -> None:
        dist.isend(tensor, group=group, group_dst=group_src, tag=tag)
        self.tensor = tensor

    def wait(self) -> None:
        """It has arrived."""


class StageAlone(StageOnMesh):
    """A stage whose neighbours are not there: it knows the shapes of what is sent without them."""

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        return torch.tensor([1])

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        return torch.tensor([1])

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _held(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _held(super().get_bwd_send_ops(bwd_chunk_id))


def _held(sends: list[dist.P2POp]) -> list[dist.P2POp]:
    """The same with `Sent`: the fake backend, unlike others, forgets what it sends at once."""
    for each in sends:
        each.op = Sent
    return sends


def order_of(schedule: str, processes: int, micro_batches: int) -> list[list[Pass]]:
    """What torch has each process of a pipeline compute, in order."""
    stages = processes * STAGES[schedule]
    with fake_processes(processes):
        own = [StageOnMesh(nn.Identity(), each, stages, torch.device("cpu")) for each in range(0, stages, processes)]
        order = SCHEDULES[schedule](own, micro_batches, loss_fn=min).pipeline_order
    return [list(_numbered(order[process])) for process in range(processes)]


def _numbered(actions: Iterable[Any]) -> Iterator[Pass]:
    """The passes among torch's actions; each stage takes the micro-batches in turn."""
    counts = Counter[tuple[str, int]]()
    for action in actions:
        kind = "" if action is None else action.computation_type.value
        if kind in LENGTHS:
            yield Pass(kind, action.stage_index, counts[kind, action.stage_index])
            counts[kind, action.stage_index] += 1


def most_at_once(passes: Iterable[Pass]) -> int:
    """The most forward passes of a process at a time whose activations wait for the backward pass."""
    return max(accumulate({"F": 1, "I": 0}.get(each.kind, -1) for each in passes))


def waiting(order: Sequence[Sequence[Pass]], checkpointed: bool) -> float:
    """How long the pipeline waits in a step, as a share of the time that a process computes, if all stages compute equally long."""
    lengths = {kind: length + (checkpointed and kind in "BI") for kind, length in LENGTHS.items()}
    left, clocks = [deque(passes) for passes in order], [0] * len(order)
    last, ends = max(each.stage for each in order[-1]), dict[tuple[bool, int, int], int]()
    while any(left):
        for process, passes in enumerate(left):
            # Vectors come from the stage before, their gradients from the one behind.
            while passes and (began := _ready(passes[0], last, ends)) is not None:
                each = passes.popleft()
                clocks[process] = max(clocks[process], began) + lengths[each.kind]
                ends.setdefault((each.kind == "F", each.stage, each.number), clocks[process])  # nobody needs "W"
    return max(clocks) / max(sum(lengths[each.kind] for each in passes) for passes in order) - 1


def _ready(each: Pass, last: int, ends: Mapping[tuple[bool, int, int], int]) -> int | None:
    """When a pass has what it needs from another stage; None: not yet known."""
    forward = each.kind == "F"
    if each.kind == "W" or each.stage == (0 if forward else last):
        return 0
    return ends.get((forward, each.stage + (-1 if forward else 1), each.number))
