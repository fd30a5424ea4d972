"""Weights and inputs for the parts of the homework, drawn from a seed."""

import torch
from torch import Tensor

DIM, HEADS, VOCABULARY, DEPTH, CONTEXT = 12, 3, 11, 2, 8


def draw(state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Fill tensors in place, biases and gains too."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in state.values():
        tensor.copy_(0.5 * torch.randn(tensor.shape, dtype=torch.float64, generator=generator))
    return state


def input_of(seed: int, batch: int = 2, length: int = 6) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def block_shapes(prefix: str = "") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in "qkvo":
        shapes |= {f"attention.{name}.weight": (DIM, DIM), f"attention.{name}.bias": (DIM,)}
    for number in (1, 2):
        shapes |= {f"norm{number}.weight": (DIM,), f"norm{number}.bias": (DIM,)}
    shapes |= {"up.weight": (4 * DIM, DIM), "up.bias": (4 * DIM,), "down.weight": (DIM, 4 * DIM), "down.bias": (DIM,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def model_weights(seed: int) -> dict[str, Tensor]:
    shapes = {"tokens.weight": (VOCABULARY, DIM), "positions.weight": (CONTEXT, DIM)}
    for index in range(DEPTH):
        shapes |= block_shapes(f"blocks.{index}.")
    shapes |= {"norm.weight": (DIM,), "norm.bias": (DIM,)}
    return draw({name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}, seed)
