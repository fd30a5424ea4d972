"""Rounding sizes that differ between steps, so that they recur."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def recurring_size(number: int) -> int:
    """The number rounded up to one of 32 sizes per doubling, multiples of 8: at most 3 % more above 256.

    oneDNN compiles a matrix product for every new number of rows, which takes milliseconds and half a megabyte each time, and
    fragments the heap so that large tensors no longer fit.
    """
    step = max(8, 1 << max(0, (number - 1).bit_length() - 6))
    return -(-number // step) * step


def weighted(
    x: Float[Tensor, "N D"], targets: Int[Tensor, " N"], weights: Float[Tensor, " N"], count: int
) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The `count` rows with non-zero weight, in order, and as many with weight 0 as round their number to a recurring size."""
    places = (weights == 0).to(torch.uint8).argsort(stable=True)[: recurring_size(count)]
    return x[places], targets[places], weights[places]
