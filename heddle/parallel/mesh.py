"""The mesh: an axis of processes for each way of dividing a training."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.positions import BucketsConfig
from heddle.config.tasks import TaskSettings
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError, pluralize

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Outermost first: neighbours of the last axis are on one machine.
AXES = ("pipeline", "replicate", "shard", "context", "tensor")
STAGES = {"1f1b": 1, "interleaved": 2, "zero-bubble": 1}  # of one process, for each schedule of a pipeline


def mesh_sizes(config: ParallelConfig, processes: int) -> dict[str, int]:
    """The size of each axis for this many processes.

    Raises:
        HeddleError: the axes do not fit the number of processes.
    """
    sizes = {name: getattr(config, name) for name in AXES}
    others = prod(size for name, size in sizes.items() if name != "shard")
    words = " x ".join(f"{name} = {size}" for name, size in sizes.items() if size not in (1, "auto")) or "shard = 1"
    if sizes["shard"] == "auto":
        if processes % others:
            raise HeddleError(
                f"parallel: {words} does not divide {pluralize(processes, 'process')}: use a multiple of {others} "
                f"(torchrun --nproc-per-node {others}), or set these to 1"
            )
        sizes["shard"] = processes // others
    elif others * sizes["shard"] != processes:
        raise HeddleError(
            f"parallel: {words} is for {pluralize(others * sizes['shard'], 'process')}, not for {processes}: use as many "
            f"(torchrun --nproc-per-node), or set shard = auto"
        )
    if sizes["shard"] * sizes["context"] % config.expert:
        raise HeddleError(
            f"parallel: expert = {config.expert} does not divide shard x context = {sizes['shard'] * sizes['context']}"
        )
    return {**sizes, "expert": config.expert}


def count_processes(sizes: Mapping[str, int]) -> int:
    """How many processes a mesh has. Those of `expert` are among those of `shard` and `context`."""
    return prod(sizes[name] for name in AXES)


def count_readers(sizes: Mapping[str, int]) -> int:
    """How many shares of a batch's rows the processes of a mesh read."""
    return sizes["replicate"] * sizes["shard"]


def check_pipeline(config: ParallelConfig, model: TransformerConfig, train: TrainConfig, compiled: bool) -> None:
    """Check that a pipeline can be combined with everything else of a training.

    Raises:
        HeddleError: it cannot.
    """
    if config.pipeline == 1:
        return
    where = f"parallel: pipeline = {config.pipeline}"
    if model.encoder is not None and model.decoder is not None:
        raise HeddleError(f"{where}: a model with an encoder and a decoder cannot be divided")
    if compiled:
        raise HeddleError(f"{where} cannot be combined with compile = on: leave one out")
    if train.accumulate % config.pipeline:
        raise HeddleError(
            f"{where} hands on micro-batches, so accumulate must be a multiple of {config.pipeline}, not {train.accumulate}"
        )


def check_task(config: ParallelConfig, task: TaskSettings) -> None:
    """Check that processes can divide the rows of a task as the mesh does.

    Raises:
        HeddleError: they cannot.
    """
    if config.context > 1 and not task.by_token:
        kind = type(task).model_fields["kind"].default
        raise HeddleError(
            f"parallel: context = {config.context} divides tokens that are scored one by one, but task.kind = {kind!r} scores "
            "whole texts: set parallel.context=1, and use replicate or shard"
        )


def check_layers(config: ParallelConfig, model: TransformerConfig) -> None:
    """Check that the layers of a model can be divided among the stages of a pipeline.

    Raises:
        HeddleError: they cannot.
    """
    if config.pipeline == 1:
        return
    blocks, stages = model.last()[1].blocks, config.pipeline * STAGES[config.schedule]
    where = f"parallel: pipeline = {config.pipeline} with schedule = {config.schedule}"
    if len(blocks) < stages:
        raise HeddleError(
            f"{where} has {stages} stages, but the model has {pluralize(len(blocks), 'layer')}: set depth to {stages} or more"
        )
    # torch then computes the gradients of weights through later layers, whose saved tensors are gone.
    tables = any(isinstance(getattr(block.mixer, "relative", None), BucketsConfig) for block in blocks)
    if config.schedule == "zero-bubble" and tables:
        raise HeddleError(f"{where} cannot divide layers that share tables of relative positions: set another schedule")


def cut_layers(layers: int, stages: int) -> list[range]:
    """The layers of each stage. If they do not divide equally, earlier stages have one more: the last has the head and the loss."""
    each, more = divmod(layers, stages)
    starts = [stage * each + min(stage, more) for stage in range(stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def make_mesh(sizes: dict[str, int], device: str) -> "DeviceMesh":
    """The mesh of all processes of this job, which have joined each other: `pipeline`, `replicate`, `shard` and `tensor`.

    Those that divide the tokens of the same rows shard parameters too, so `context` is a part of `shard`.
    """
    from torch.distributed.device_mesh import init_device_mesh

    shard = sizes["shard"] * sizes["context"]
    axes = {name: sizes[name] for name in ("pipeline", "replicate", "shard", "tensor")} | {"shard": shard}
    return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))


def make_expert_mesh(sizes: dict[str, int], device: str) -> "DeviceMesh":
    """The same processes as `make_mesh`, whose axis `shard` is `shard` x `expert` here."""
    from torch.distributed.device_mesh import init_device_mesh

    inner = sizes["shard"] * sizes["context"] // sizes["expert"]
    axes = {"replicate": sizes["replicate"], "shard": inner, "expert": sizes["expert"], "tensor": sizes["tensor"]}
    return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))


def make_context(sizes: dict[str, int], device: str) -> "DeviceMesh":
    """The processes that divide the tokens of the same rows as this one."""
    from torch.distributed.device_mesh import init_device_mesh

    axes = {"rows": sizes["replicate"] * sizes["shard"], "context": sizes["context"], "tensor": sizes["tensor"]}
    return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))["context"]
