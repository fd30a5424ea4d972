"""The mesh: an axis of processes for each way of dividing a training."""

from math import prod
from typing import TYPE_CHECKING

from heddle.config.parallel import ParallelConfig
from heddle.errors import HeddleError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("replicate", "shard", "tensor")  # outermost first: neighbours of the last axis are on one machine


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
            raise HeddleError(f"parallel: {words} does not divide {processes} processes: start a multiple of {others}")
        sizes["shard"] = processes // others
    elif others * sizes["shard"] != processes:
        raise HeddleError(
            f"parallel: {words} is for {others * sizes['shard']} processes, but {processes} "
            f"{'was' if processes == 1 else 'were'} started: start as many, or leave out shard"
        )
    return sizes


def copies_of_rows(sizes: dict[str, int]) -> int:
    """How many processes compute the same rows, each for a part of the model; their ranks are neighbours."""
    return sizes["tensor"]


def make_mesh(sizes: dict[str, int], device: str) -> "DeviceMesh":
    """The mesh of all processes of this job, which have joined each other."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
