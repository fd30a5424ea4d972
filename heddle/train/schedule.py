"""Learning rates: the highest and the warmup where the user gives none, and the rate over time as a factor of the highest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import NamedTuple

from heddle.config.train import TrainConfig

NARROW = 128  # the width up to which every highest rate falls with the root of the width


@dataclass(frozen=True)
class Usual:
    """The defaults of a kind of training.

    Attributes:
        at_256: the highest rate at width 256, by optimizer.
        power: beyond `NARROW`, the rate falls with the width to this power.
        warmup: share of all steps over which rates rise.
    """

    at_256: Mapping[str, float]
    power: float
    warmup: float

    def rate(self, train: TrainConfig, dim: int) -> float:
        """The highest learning rate of a model of this width."""
        wide = max(dim, NARROW)
        rate: float = self.at_256[train.optimizer] * (256 / wide) ** self.power * (wide / dim) ** 0.5
        return rate


# Of AdamW beside Muon, of AdamW alone (matrices tolerate less than tables and vectors), of SGD.
FROM_NOTHING = Usual({"muon": 6e-3, "adamw": 3e-3, "sgd": 0.07}, 0.5, 0.02)
# What a wide model has learned is lost at rates that suit a narrow one: a tenth at width 256, less beyond
# (docs/evidence/choices.md).
STARTED = Usual({"muon": 3e-4, "adamw": 3e-4, "sgd": 0.007}, 1.5, 0.1)
# Adapters start at 0, and a higher rate suits them (docs/evidence/training.md).
ADAPTERS = Usual({"adamw": 3e-3, "sgd": 0.07}, 1.0, 0.1)


def usual(train: TrainConfig, started: bool = False) -> Usual:
    """The defaults of a training from initial weights, of one that starts from a run, or of adapters."""
    return ADAPTERS if train.lora is not None else STARTED if started else FROM_NOTHING


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
