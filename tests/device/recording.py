"""Imitated CUDA graphs: operations are noted in a capture, which computes nothing, and are computed in each replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from tests.device.imitation import Imitation


class Graph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self, gpu: "Imitation") -> None:
        self.gpu = gpu
        self.operations: list[tuple[Callable[[], Any], list[Tensor]]] = []
        self.before, self.fresh = list[tuple[Tensor, Tensor]](), list[Tensor]()

    def note(self, compute: Callable[[], Any], results: list[Tensor], arguments: list[Tensor]) -> None:
        """Compute this again in each replay, into the same memory."""
        self.operations.append((compute, results))
        old = {each.untyped_storage().data_ptr() for each in arguments}
        self.fresh += [each for each in results if each.untyped_storage().data_ptr() not in old]

    def keep(self, tensors: list[Tensor]) -> None:
        """What an operation may write to, which is as before after the capture."""
        self.before += [(each, each.clone()) for each in tensors]

    def replay(self) -> None:
        """One launch."""
        self.gpu.launch()
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            for compute, results in self.operations:
                for place, number in zip(results, flat(compute()), strict=True):
                    if place.data_ptr() != number.data_ptr():
                        place.copy_(number)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Note the operations inside the block."""
        self.gpu.graph = self
        try:
            yield
        finally:
            self.gpu.graph = None
        with _disable_current_modes(), torch.no_grad():
            for each in self.fresh:  # a capture computes nothing
                each.fill_(torch.nan if each.is_floating_point() else True if each.dtype == torch.bool else -1)
            for place, numbers in reversed(self.before):
                place.copy_(numbers)
        self.before, self.fresh = [], []


def flat(value: Any) -> list[Tensor]:
    """The tensors in a result."""
    if isinstance(value, Tensor):
        return [value]
    return [each for part in value for each in flat(part)] if isinstance(value, list | tuple) else []
