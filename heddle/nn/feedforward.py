"""Feed-forward layers: each token on its own (L0-94, L1-12)."""

from jaxtyping import Float
from torch import Tensor, nn

from heddle.nn.activations import ACTIVATIONS
from heddle.nn.dropout import Dropout


class MLP(nn.Module):
    """down(act(up(x))) (L0-67, L1-20; golden `mlp`), with dropout after the activation if there is any."""

    def __init__(
        self, dim: int, hidden: int, activation: str = "gelu", bias: bool = True, dropout: Dropout | None = None
    ) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(0.0) if dropout is None else dropout

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.down(self.dropout(self.activation(self.up(x))))


class Gated(nn.Module):
    """down(act(gate(x)) · up(x)) (L1-21; Shazeer 2020, eq. 6; golden `mlp_gated`)."""

    def __init__(
        self, dim: int, hidden: int, activation: str = "silu", bias: bool = False, dropout: Dropout | None = None
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=bias)
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(0.0) if dropout is None else dropout

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
