"""How much of a step's time the collectives of a process take."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

EVERY = 100  # steps from one that is looked at to the next
FIRST = 3  # the number of the first of them: earlier steps may compile


class Collectives:
    """Looks at one step in a hundred with torch's profiler, which sees what gloo's threads and NCCL's kernels do.

    Attributes:
        seconds: in which a collective of this process ran, in the last step that was looked at, whether or not it computed
            meanwhile; None: the last step was not looked at.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.seconds: float | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step."""
        self.steps, self.seconds = self.steps + 1, None
        if self.steps % EVERY != FIRST or torch.autograd.profiler._is_profiler_enabled:  # another one watches
            yield
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        with profile(activities=activities) as profiler:
            yield
        result: Any = profiler.profiler
        spans = (
            (event.start_ns(), event.end_ns())
            for event in result.kineto_results.events()
            if event.name().startswith("gloo:") or event.name().startswith("ncclDevKernel")
        )
        self.seconds = covered(spans) / 1e9


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of what at least one of these spans (start, end) covers."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
