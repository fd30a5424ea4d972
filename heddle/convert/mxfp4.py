"""Matrices in MXFP4: blocks of 32 numbers of 4 bits with a common power of 2 (OCP Microscaling Formats 1.0, 5.3)."""

import torch
from torch import Tensor

from heddle.weights.tensors import Spec, Weights

BLOCKS, SCALES = "_blocks", "_scales"
# The numbers of E2M1: a sign, two bits of exponent, one of mantissa.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of the powers of 2


class Unpacked(Weights):
    """Weights in which each stack of packed matrices, two tensors of bytes, is one of numbers, which fp32 holds exactly.

    `NAME_blocks` is UInt8[E n g 16], two numbers a byte, the lower half first, and `NAME_scales` UInt8[E n g]; `NAME` is
    Float[E 32g n], input first.
    """

    def __init__(self, packed: Weights) -> None:
        self.packed, self.metadata = packed, packed.metadata
        self.specs = {name: spec for name, spec in packed.specs.items() if stem(packed, name) is None}
        for name in packed.specs:
            if (found := stem(packed, name)) is not None:
                experts, rows, groups, half = packed.specs[found + BLOCKS].shape
                self.specs[found] = Spec("F32", (experts, 2 * half * groups, rows))

    def __getitem__(self, name: str) -> Tensor:
        if name in self.packed.specs:
            return self.packed[name]
        return unpacked(self.packed[name + BLOCKS], self.packed[name + SCALES]).transpose(1, 2)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """The numbers of packed rows: UInt8[... g b] and UInt8[... g] give Float[... g·2b]."""
    table = torch.tensor([*VALUES, *(-value for value in VALUES)])
    numbers = torch.stack((table[(blocks & 15).int()], table[(blocks >> 4).int()]), -1).flatten(-2)
    return torch.ldexp(numbers, scales[..., None].int() - BIAS).flatten(-2)


def stem(weights: Weights, name: str) -> str | None:
    """The name of the matrices that a tensor is one of the two parts of, or None."""
    for end in (BLOCKS, SCALES):
        found = name.removesuffix(end)
        pair = [weights.specs.get(found + each) for each in (BLOCKS, SCALES)]
        if found != name and all(spec is not None and spec.dtype == "U8" for spec in pair):
            return found if len(weights.specs[found + BLOCKS].shape) == 4 else None
    return None
