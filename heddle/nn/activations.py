"""Activation functions, by name. Each returns a new tensor, which its caller may overwrite."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config.layers import GatedConfig, MLPConfig

QUICK = 1.702  # the sigmoid of this multiple is close to GELU's normal distribution
SLOPE = 0.01  # of the leaky ReLU below 0


def gelu(x: Tensor) -> Tensor:
    """x/2 · (1 + erf(x/√2)), the exact GELU (L0-68)."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU in GPT-2's code; it differs by at most 4.7324e-4 (D-07)."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 x), the approximation of GELU in CLIP's code (Hendrycks and Gimpel 2016, section 2)."""
    return x * torch.sigmoid(QUICK * x)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021)."""
    return F.relu(x).square()


def leaky_relu(x: Tensor) -> Tensor:
    """max(x, x / 100) (Maas et al. 2013)."""
    return F.leaky_relu(x, SLOPE)


def linear(x: Tensor) -> Tensor:
    """x itself, copied: without an activation, a gated feed-forward is bilinear (Shazeer 2020, eq. 5)."""
    return x.clone()


class Gating(NamedTuple):
    """How a gated feed-forward combines its two maps: act(gate) · up.

    Attributes:
        activation: the name of act.
        limit: the upper bound of the input of act, and ± the bound of the other factor; None: no bound.
        plus_one: whether the other factor is up + 1.
    """

    activation: str
    limit: float | None = None
    plus_one: bool = False

    @classmethod
    def of(cls, config: MLPConfig | GatedConfig) -> "Gating":
        """The gating of a feed-forward; without a gate, only the activation."""
        if isinstance(config, MLPConfig):
            return cls(config.activation)
        return cls(config.activation, config.limit, config.plus_one)

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) · up, as a new tensor."""
        opened, factor = self.factors(gate, up)
        return ACTIVATIONS[self.activation](opened) * factor

    def factors(self, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """The input of act, and the factor on its output."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate, up + 1 if self.plus_one else up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu6": F.relu6,
    "relu_squared": relu_squared,
    "leaky_relu": leaky_relu,
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


def _quick_gelu_slope(gradient: Tensor, x: Tensor) -> Tensor:
    share = torch.sigmoid(QUICK * x)
    return gradient * (share + QUICK * x * share * (1 - share))


# The gradient of an activation: (gradient of its output, its input) -> gradient of its input.
SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": lambda gradient, x: torch.ops.aten.gelu_backward(gradient, x, approximate="tanh"),
    "quick_gelu": _quick_gelu_slope,
    "relu": lambda gradient, x: gradient * (x > 0),
    "relu6": lambda gradient, x: gradient * ((x > 0) & (x < 6)),
    "relu_squared": lambda gradient, x: gradient * F.relu(x).mul_(2),
    "leaky_relu": lambda gradient, x: torch.ops.aten.leaky_relu_backward(gradient, x, SLOPE, False),
    "silu": torch.ops.aten.silu_backward,
    "mish": torch.ops.aten.mish_backward,
    "sigmoid": lambda gradient, x: torch.ops.aten.sigmoid_backward(gradient, torch.sigmoid(x)),
    "tanh": lambda gradient, x: torch.ops.aten.tanh_backward(gradient, torch.tanh(x)),
    "linear": lambda gradient, x: gradient,
}
