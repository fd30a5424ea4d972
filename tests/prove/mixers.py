"""Mixers as a user would bring them: `inner(x, layout)`, one honest, one not."""

import torch
from torch import Tensor, nn

from heddle.nn import Layout


class Peeking(nn.Module):
    """The mean of the whole text, its end included."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.mix(x.mean(1, keepdim=True).expand_as(x))


class Chaotic(nn.Module):
    """Looks back only, but rounds so badly that any other fault could hide behind it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Numbers of which no digit is certain."""
        return torch.sin(1e9 * self.weight * x)


class Failing(nn.Module):
    """Works on whole texts alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Refuses short ones in its own words."""
        if x.shape[1] < 2:
            raise KeyError("my own error")
        return self.weight * x


class Twice(nn.Module):
    """Another function in training than in prediction."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Twice as much while it is trained."""
        return self.out(x) * (2 if self.training else 1)


class Late(nn.Module):
    """Looks ahead, but only far into a text."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """The next token from position 40 on."""
        late = (layout.position >= 40)[..., None]
        return self.out(x + late * x.roll(-1, dims=1))
