"""An exponential moving average of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from heddle.checks import Limit, at_least, checked

SHARE = Limit("above 0 and below 1", lambda value: bool(0 < value < 1))


class MovingAverage:
    """The average a <- d·a + (1 - d)·w of weights w, updated after each step (Polyak & Juditsky 1992; Tarvainen & Valpola 2017).

    d is `min(decay, (1 + n) / (10 + n))` after step n, so that the initial weights do not count for long (as in TensorFlow's
    `ExponentialMovingAverage` with `num_updates`).

    Args:
        weights: fp32 weights by name, such as `optimizer.masters`; the average starts from their values.
        decay: share of itself that the average keeps at each step, such as 0.999.

    Attributes:
        average: the average, by the same names.
    """

    @checked(decay=SHARE)
    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.weights = dict(weights)
        self.decay = decay
        self.average = {name: weight.detach().clone() for name, weight in weights.items()}

    @checked(step=at_least(1))
    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take up the present weights, which are those after step `step`, counted from 1."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), [weight.detach() for weight in self.weights.values()], share)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Inside the `with` block, the weights have the values of the average, and the average those of the weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, weight in self.weights.items():  # by value: a part of a sharded parameter shares its memory
            before = weight.detach().clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(before)
