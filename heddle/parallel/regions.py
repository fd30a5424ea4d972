"""Which part of a parameter a process holds: a span along each of its axes."""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor

Region = tuple[tuple[int, int], ...]
"""(start, stop) along each axis of a tensor."""


def region(parameter: DTensor, coordinate: Mapping[str, int]) -> Region:
    """The part of a parameter that the process at a coordinate of the mesh holds.

    Where two axes of the mesh cut the same axis of the tensor, the last one cuts first, as torch's FSDP does.
    """
    spans, mesh = [(0, size) for size in parameter.shape], parameter.device_mesh
    axes = zip(parameter.placements, mesh.mesh_dim_names or (), mesh.shape, strict=True)
    for placement, axis, size in reversed(list(axes)):
        if not placement.is_replicate():  # what FSDP cuts again is no `Shard` of torch
            dim: int = getattr(placement, "dim")  # noqa: B009
            spans[dim] = _chunk(spans[dim], coordinate[axis], size)
    return tuple(spans)


def cut(tensor: Tensor, part: Region) -> Tensor:
    """A view of a part of a tensor."""
    return tensor[tuple(slice(start, stop) for start, stop in part)]


def _chunk(span: tuple[int, int], number: int, size: int) -> tuple[int, int]:
    """Chunk `number` of `size`, as torch cuts: all of one length, the last ones shorter or empty."""
    start, stop = span
    step = -(-(stop - start) // size)
    return min(start + step * number, stop), min(start + step * (number + 1), stop)
