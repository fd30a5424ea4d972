"""Activation functions, by name."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def gelu(x: Tensor) -> Tensor:
    """x/2 · (1 + erf(x/√2)), the exact GELU (L0-68)."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU in GPT-2's code; it differs by at most 4.7324e-4 (D-07)."""
    return F.gelu(x, approximate="tanh")


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu_squared": relu_squared,
    "silu": F.silu,
}
