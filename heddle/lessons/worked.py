"""The lectures' worked example: three tokens of width 4, and the weights of a block with two heads.

Matrices are as the lectures write them: a token is a row, and is multiplied from the left, x W. The linear maps have no biases.
"""

import torch
from torch import Tensor

MATRICES: dict[str, list[list[float]]] = {
    "Z": [
        [1.0, 0.5, -0.5, 2.0], [0.0, -1.0, 1.5, 0.3], [0.7, 0.2, -1.2, -0.4],
    ],
    "W_Q": [
        [-0.3, -0.15, -0.75, -0.65], [0.15, 0.8, -0.5, -0.5], [0.8, 0.75, -0.05, -0.15], [0.45, 0.3, -0.6, -0.8],
    ],
    "W_K": [
        [0.4, 0.55, -0.05, 0.05], [-0.6, -0.55, 0.2, 0.8], [-0.55, -0.6, 0.65, 0.55], [-0.9, -0.45, 0.1, -0.1],
    ],
    "W_V": [
        [-0.95, -0.8, 0.65, 0.75], [0.1, 0.15, -0.55, -0.55], [0.15, 0.1, -0.7, -0.8], [0.4, 0.25, 0.8, 0.6],
    ],
    "W_O": [
        [-0.25, -0.1, -0.7, -0.6], [0.8, 0.85, 0.15, 0.15], [0.85, 0.8, 0.0, -0.1], [-0.95, 0.95, -0.55, -0.75],
    ],
    "W_1": [
        [0.45, 0.6, 0.0, 0.1, -0.55, -0.5, 0.85, 0.85, -0.5, 0.05, 0.7, 0.6, -0.25, -0.4, 0.15, -0.05],
        [-1.0, 0.8, -0.8, 0.95, -0.1, 1.0, -0.1, -0.5, -0.2, -0.65, -0.4, -0.9, -0.7, 0.8, 0.95, 0.35],
        [0.45, -0.2, -0.15, -0.85, -0.85, -0.15, 0.4, -1.0, 0.95, 0.1, -0.05, 0.5, 0.3, -0.65, -0.9, -0.45],
        [-0.75, 0.25, -0.7, 0.25, -0.15, 0.15, -0.3, -0.05, -0.55, -0.35, -0.9, -0.75, 0.7, 0.8, 0.15, 0.2],
    ],
    "W_2": [
        [-0.9, -0.75, 0.7, 0.8], [0.15, 0.2, -0.5, -0.5], [0.8, 0.75, -0.65, -0.75], [0.45, 0.3, 0.85, 0.65],
        [-0.3, -0.55, -0.1, -0.4], [0.6, 0.25, 0.6, 0.2], [0.5, 0.05, 0.3, -0.2], [0.0, -0.55, -0.4, -1.0],
        [-0.9, 0.5, 0.55, -0.15], [-0.15, -0.9, -0.95, -0.3], [-0.4, 0.8, 0.65, -0.85], [1.0, 0.05, -0.2, 0.25],
        [-0.05, 0.95, 0.6, 0.95], [0.55, 0.85, 0.4, 0.65], [0.15, 0.35, -0.2, -0.05], [-0.65, -0.55, 0.85, 0.9],
    ],
}  # fmt: skip
VECTORS = {
    "norm1_gain": [1.0, 0.9, 1.1, 1.2],
    "norm1_shift": [0.1, -0.1, 0.0, 0.2],
    "norm2_gain": [0.8, 1.0, 1.3, 0.7],
    "norm2_shift": [0.0, 0.05, -0.2, 0.1],
}
PLACES = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O", "up": "W_1", "down": "W_2"}  # the homework's names


def worked(*names: str) -> tuple[Tensor, ...]:
    """Some of the matrices and vectors, in float64: `Z, W_Q = worked("Z", "W_Q")`."""
    return tuple(torch.tensor((MATRICES | VECTORS)[name], dtype=torch.float64) for name in names)


def worked_weights() -> dict[str, Tensor]:
    """The block's weights by the names of the homework, stored as torch stores them, with biases of 0."""
    weights: dict[str, Tensor] = {}
    for place, name in PLACES.items():
        (matrix,) = worked(name)
        prefix = "" if place in ("up", "down") else "attention."
        weights[f"{prefix}{place}.weight"] = matrix.T
        weights[f"{prefix}{place}.bias"] = torch.zeros(matrix.shape[1], dtype=torch.float64)
    for norm in ("norm1", "norm2"):
        weights[f"{norm}.weight"], weights[f"{norm}.bias"] = worked(f"{norm}_gain", f"{norm}_shift")
    return weights
