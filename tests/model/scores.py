"""Changes of attention scores as users bring them: `inner(scores, queries, keys)`."""

import torch
from torch import Tensor, nn


class SoftCap(nn.Module):
    """Scores between -cap and cap (Gemma 2)."""

    def __init__(self, heads: int, cap: float = 5.0) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return self.cap * torch.tanh(scores / self.cap)


class Slopes(nn.Module):
    """Scores that fall with the distance, in each head at a rate of its own (ALiBi)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=scores.device, dtype=scores.dtype)
        slopes = 2 ** (-8 * head / self.heads)
        return scores - slopes[:, None, None] * (queries - keys).abs()


class Near(nn.Module):
    """A token sees itself and the `size` - 1 before it."""

    def __init__(self, heads: int, size: int = 3) -> None:
        super().__init__()
        self.size = size

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores.masked_fill(queries - keys >= self.size, -torch.inf)


class Learned(nn.Module):
    """A factor and a preference for even distances, both learned, in each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(heads, 1, 1))
        self.even = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores * self.factor + self.even * ((queries - keys) % 2 == 0)


class Ahead(SoftCap):
    """Of each key the score of the next one, so that a token sees what follows it."""

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores + scores.roll(-1, dims=-1)


class Counting(SoftCap):
    """Depends on how many keys there are, which a cache has otherwise than a whole text."""

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores * (1 + 0.01 * scores.shape[-1])


class Places(SoftCap):
    """Depends on where a key is in its row, which packing and padding change, instead of on its position."""

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores + torch.arange(scores.shape[-1], device=scores.device) % 3


class Narrow(SoftCap):
    """Returns another shape."""

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return scores[..., :1]
