"""A user's own mixer, which a test puts into a folder of its own."""

from torch import Tensor, nn

from heddle.nn import Layout


class Mine(nn.Module):
    """A linear map of each token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.map(x)
