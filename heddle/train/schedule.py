"""Learning rates over time, as a factor of the highest."""

from collections.abc import Callable
from math import cos, pi

# progress through the decay in [0, 1] -> share of the way from the highest rate down to the last
SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + cos(pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}


def factor(step: int, steps: int, warmup: int, shape: str, final: float) -> float:
    """The factor at `step` (from 0) of `steps`: a linear warmup over `warmup` steps, then a decay to `final` by `shape`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return final + (1 - final) * SHAPES[shape](progress)
