"""How a parameter is divided among processes, and which part of it a process holds: a span along each of its axes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:  # their import takes as long as torch's own, and one process needs none of it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Region = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of a tensor."""


@dataclass(frozen=True)
class Division:
    """How a parameter is divided among the processes of a mesh.

    Attributes:
        mesh: the processes.
        placements: torch's, one for each axis of the mesh.
        shape: of the whole parameter.
    """

    mesh: "DeviceMesh"
    placements: tuple[Any, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, parameter: "DTensor") -> "Division":
        """That of a sharded parameter."""
        return cls(parameter.device_mesh, tuple(parameter.placements), tuple(parameter.shape))

    @property
    def parts(self) -> int:
        """How many different parts there are."""
        # What FSDP cuts again is no `Shard` of torch.
        axes = zip(self.placements, self.mesh.shape, strict=True)
        return prod(size for placement, size in axes if not placement.is_replicate())

    def region(self, coordinate: Mapping[str, int] | None = None) -> Region:
        """The part of the process at a coordinate of the mesh; None: of this one.

        Where two axes of the mesh cut the same axis of the tensor, the last one cuts first, as torch's FSDP does.
        """
        names = self.mesh.mesh_dim_names or ()
        place = dict(zip(names, self.mesh.get_coordinate() or (), strict=True)) if coordinate is None else coordinate
        spans = [(0, size) for size in self.shape]
        for placement, name, size in reversed(list(zip(self.placements, names, self.mesh.shape, strict=True))):
            if not placement.is_replicate():
                spans[placement.dim] = _chunk(spans[placement.dim], place[name], size)
        return tuple(spans)

    def joint(self, part: Tensor) -> "DTensor":
        """The parts of all processes as one tensor, as `torch.distributed` knows it; nothing is sent."""
        from torch.distributed.tensor import DTensor

        shape = torch.Size(self.shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, self.mesh, self.placements, run_check=False, shape=shape, stride=stride)


def cut(tensor: Tensor, part: Region) -> Tensor:
    """A view of a part of a tensor."""
    return tensor[slices(part)]


def slices(region: Region) -> tuple[slice, ...]:
    """A region as an index."""
    return tuple(slice(start, stop) for start, stop in region)


def _chunk(span: tuple[int, int], number: int, size: int) -> tuple[int, int]:
    """Chunk `number` of `size`, as torch cuts: all of one length, the last ones shorter or empty."""
    start, stop = span
    step = -(-(stop - start) // size)
    return min(start + step * number, stop), min(start + step * (number + 1), stop)
