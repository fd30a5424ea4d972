"""Mixers as users should not bring them: `inner(x, layout)`, each with a fault of its own."""

import torch
from torch import Tensor, nn

from heddle.nn import Layout


class Linear(nn.Module):
    """A map of each token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim)


class Peeking(Linear):
    """The mean of the whole text, its end included."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.out(x.mean(1, keepdim=True).expand_as(x))


class Chaotic(Linear):
    """Looks back only, but rounds so badly that any other fault could hide behind it: of its numbers no digit is certain."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return torch.sin(1e9 * self.out(x))


class Failing(Linear):
    """Works on whole texts alone, and refuses short ones in its own words."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[1] < 2:
            raise KeyError("my own error")
        return self.out(x)


class Twice(Linear):
    """Another function in training, twice as much, than in prediction."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.out(x) * (2 if self.training else 1)


class Late(Linear):
    """Looks ahead, but only far into a text: at the next token from position 40 on."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        late = (layout.position >= 40)[..., None]
        return self.out(x + late * x.roll(-1, dims=1))
