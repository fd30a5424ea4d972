"""Learning rates over time, as a factor of the highest."""

from collections.abc import Callable
from math import cos, pi, sqrt
from typing import NamedTuple

from heddle.config.train import TrainConfig


class Moment(NamedTuple):
    """A step after the warmup.

    Attributes:
        progress: share of the steps after the warmup that are done, in [0, 1].
        step: its number, from 0, in the whole run.
        warmup: steps of the warmup.
        decay: share of all steps over which `wsd` decays.
    """

    progress: float
    step: int
    warmup: int
    decay: float


# Share of the way from the highest rate down to the final one that is still left.
SCHEDULES: dict[str, Callable[[Moment], float]] = {
    "cosine": lambda at: (1 + cos(pi * at.progress)) / 2,
    "linear": lambda at: 1 - at.progress,
    "constant": lambda at: 1.0,
    # Warmup, stable, decay (Hu et al. 2024, section 4.2), with a linear decay (Hägele et al. 2024).
    "wsd": lambda at: min(1.0, (1 - at.progress) / at.decay),
    # Vaswani et al. 2017, equation 3, as a factor of its largest value (L3-36).
    "inverse_sqrt": lambda at: sqrt(max(1, at.warmup) / (at.step + 1)),
}


def factor(step: int, steps: int, warmup: int, config: TrainConfig) -> float:
    """The factor at `step` (from 0) of `steps`: a linear warmup over `warmup` steps, then the config's schedule to `final`."""
    if step < warmup:
        return (step + 1) / warmup
    left = steps - warmup
    # The decay is a share of all steps, and the warmup may leave fewer.
    decay = min(1.0, config.decay * steps / max(1, left))
    share = SCHEDULES[config.schedule](Moment((step - warmup) / max(1, left), step, warmup, decay))
    return config.final + (1 - config.final) * share
