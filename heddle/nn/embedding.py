"""Tables with a trained vector for each id."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class Embedding(nn.Module):
    """A table with one row per id from 0: of tokens (L0-14), positions (L0-15), or types such as first and second sentence.

    An id beyond it is an IndexError (D-23).
    """

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(ids, self.weight)
