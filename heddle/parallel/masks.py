"""Dropout of values that are divided among processes: all of them draw the mask of the whole, and each takes its part.

Processes that compute the same tokens seed their random numbers alike, so together they drop what one process drops. Each draws as
many numbers as one process, which costs little beside the products that are divided.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from heddle.model.stack import Stack
from heddle.nn.dropout import Dropout
from heddle.nn.scope import Pattern


class DividedDropout(Dropout):
    """Dropout of a process's part of some values.

    Attributes:
        mesh: the processes that divide them.
        axis: along which they are divided.
        whole: the size of that axis, or None: the parts are equal.
    """

    mesh: DeviceMesh
    axis: int
    whole: Callable[[], int] | None

    @property
    def standard(self) -> bool:
        """Whether a fused kernel may drop: it draws random numbers of its own, and only for the heads that it is called with."""
        return False

    def keep(self, x: Tensor) -> Tensor:
        """This process's part of the mask."""
        if isinstance(x, DTensor):
            return self._part(super().keep(x), list(x.placements))
        shape = list(x.shape)
        shape[self.axis] = shape[self.axis] * self.mesh.size() if self.whole is None else self.whole()
        part: Tensor = self._part(super().keep(x.new_empty(()).expand(shape)), [Shard(self.axis)]).to_local()
        return part

    def _part(self, mask: Tensor, placements: list[Any]) -> DTensor:
        return DTensor.from_local(mask, self.mesh, [Replicate()], run_check=False).redistribute(placements=placements)


def divide_masks(module: nn.Module, mesh: DeviceMesh, axis: int, whole: Callable[[], int] | None = None) -> None:
    """Let the dropout in a module take its part of the mask, see `DividedDropout`."""
    for each in module.modules():
        if isinstance(each, Dropout):
            divided: Any = each
            divided.__class__, divided.mesh, divided.axis, divided.whole = DividedDropout, mesh, axis, whole


def pass_masks(stack: Stack) -> None:
    """Let a stack's attention take kernels to which a mask of dropout is passed, where it drops: not `sdpa`, which draws inside."""

    def changed(pattern: Pattern | None) -> Pattern | None:
        drops = pattern is not None and pattern.needs.drops == "inverted"
        return replace(pattern, needs=replace(pattern.needs, drops="any")) if pattern is not None and drops else pattern

    stack.patterns, stack.source_patterns = (
        [changed(each) for each in patterns] for patterns in (stack.patterns, stack.source_patterns)
    )
