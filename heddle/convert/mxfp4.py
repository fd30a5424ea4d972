"""Matrices quantized to MXFP4: blocks of 32 4-bit numbers with a shared power of 2 (OCP Microscaling Formats 1.0, 5.3)."""

import torch
from torch import Tensor

from heddle.weights.tensors import Spec, Weights

BLOCKS, SCALES = "_blocks", "_scales"
# The values of E2M1: a sign bit, two exponent bits, one mantissa bit.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of the powers of 2


class Unpacked(Weights):
    """Weights whose quantized matrices are read as fp32, which represents them exactly.

    A stack of matrices is stored as `NAME_blocks`, UInt8[E n g 16] with two numbers in a byte, the lower half first, and
    `NAME_scales`, UInt8[E n g]. It is read as `NAME`, Float[E 32g n], input first.
    """

    def __init__(self, packed: Weights) -> None:
        self.packed, self.metadata = packed, packed.metadata
        self.specs = {name: spec for name, spec in packed.specs.items() if stem(packed, name) is None}
        for name in packed.specs:
            if (matrix := stem(packed, name)) is not None:
                experts, rows, groups, half = packed.specs[matrix + BLOCKS].shape
                self.specs[matrix] = Spec("F32", (experts, 2 * half * groups, rows))

    def __getitem__(self, name: str) -> Tensor:
        if name in self.packed.specs:
            return self.packed[name]
        return unpacked(self.packed[name + BLOCKS], self.packed[name + SCALES]).transpose(1, 2)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Dequantize rows: UInt8[... g b] and UInt8[... g] become Float[... g·2b]."""
    table = torch.tensor([*VALUES, *(-value for value in VALUES)])
    numbers = torch.stack((table[(blocks & 15).int()], table[(blocks >> 4).int()]), -1).flatten(-2)
    return torch.ldexp(numbers, scales[..., None].int() - BIAS).flatten(-2)


def stem(weights: Weights, name: str) -> str | None:
    """The name of the matrices of which this tensor is one of the two parts, or None."""
    for end in (BLOCKS, SCALES):
        matrix = name.removesuffix(end)
        pair = [weights.specs.get(matrix + each) for each in (BLOCKS, SCALES)]
        if matrix != name and all(spec is not None and spec.dtype == "U8" for spec in pair):
            return matrix if len(weights.specs[matrix + BLOCKS].shape) == 4 else None
    return None
