"""Sizes that recur, for what differs in number from step to step."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def recurring_size(number: int) -> int:
    """The number rounded up to one of 32 sizes per doubling, multiples of 8: at most 3 % more above 256.

    A library that compiles its products, as oneDNN does, compiles them for every number of rows, which takes milliseconds and half
    a megabyte each; with these the heap is in pieces that no large tensor fits.
    """
    step = max(8, 1 << max(0, (number - 1).bit_length() - 6))
    return -(-number // step) * step


def weighted(
    x: Float[Tensor, "N D"], targets: Int[Tensor, " N"], weights: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The places with a weight, in order, and after them as many without one as make their number a recurring size."""
    count = int(weights.count_nonzero())
    places = (weights == 0).to(torch.uint8).argsort(stable=True)[: recurring_size(count)]
    return x[places], targets[places], weights[places]
