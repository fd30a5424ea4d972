"""Positions: absolute ones enter with the embeddings, rotary ones turn queries and keys. Nothing here is a buffer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.nn.layout import Layout

Rotation = tuple[Float[Tensor, "b 1 T half"], Float[Tensor, "b 1 T half"]]


class LearnedPositions(nn.Module):
    """One trained vector for each position below `context` (L0-15). Longer sequences are refused by the transformer."""

    def __init__(self, context: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, dim))

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        # Only padding can stand beyond the table; it takes the last row and is seen by nothing.
        return F.embedding(position.clamp(max=self.weight.shape[0] - 1), self.weight)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021, eq. 15): the score of a query and a key depends on their distance only.

    Channel i turns with channel i + d/2, by position · base^(-2i/d). Angles are computed from the positions in fp32, once
    per forward pass for each distinct attention.
    """

    def __init__(self, head_dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.base = base

    def forward(self, layout: Layout) -> Rotation:
        """Cosine and sine of every position's angles; one row when all rows share their positions."""
        shared = layout.form in ("plain", "padded", "uniform")
        position = layout.position[:1] if shared else layout.position
        exponent = torch.arange(0, self.head_dim, 2, device=position.device, dtype=torch.float32) / self.head_dim
        angle = position[:, None, :, None].float() * self.base**-exponent
        return angle.cos(), angle.sin()


def rotate(x: Float[Tensor, "B h T d"], rotation: Rotation) -> Float[Tensor, "B h T d"]:
    """Turn each pair of channels of `x` by its position's angle, in fp32 or wider."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
