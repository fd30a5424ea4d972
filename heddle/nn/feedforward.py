"""Feed-forward layers, applied to each token independently (L0-94, L1-12)."""

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.layers import GatedConfig, MLPConfig
from heddle.nn.activations import ACTIVATIONS, Gating
from heddle.nn.layout import Layout
from heddle.nn.output import Output
from heddle.nn.setting import Setting


class MLP(nn.Module):
    """down(dropout(act(up(x)))) (L0-67, L1-20; golden `mlp`)."""

    def __init__(self, config: MLPConfig, setting: Setting) -> None:
        super().__init__()
        dim, hidden = setting.dim, config.width(setting.dim)
        self.up = nn.Linear(dim, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, dim, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = setting.drop(config.dropout)

    def forward(self, x: Float[Tensor, "*rows D"], queries: Layout | None = None) -> Output:
        return Output(self.down(self.dropout(self.activation(self.up(x)))))


class Gated(nn.Module):
    """down(act(gate(x)) · up(x)) (L1-21; Shazeer 2020, eq. 6; golden `mlp_gated`); both factors may be bounded (`Gating`).

    In the letters of Llama's code, w1 is `gate`, w3 is `up` and w2 is `down` (L1-22; github.com/meta-llama/llama/issues/245).
    """

    def __init__(self, config: GatedConfig, setting: Setting) -> None:
        super().__init__()
        dim, hidden = setting.dim, config.width(setting.dim)
        self.gate = nn.Linear(dim, hidden, bias=config.bias)
        self.up = nn.Linear(dim, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, dim, bias=config.bias)
        self.gating = Gating.of(config)
        self.dropout = setting.drop(config.dropout)

    def forward(self, x: Float[Tensor, "*rows D"], queries: Layout | None = None) -> Output:
        return Output(self.down(self.dropout(self.gating(*self.factors(x)))))

    def factors(self, x: Float[Tensor, "*rows D"]) -> tuple[Tensor, Tensor]:
        """The gate before its activation, and the factor that it scales."""
        return self.gate(x), self.up(x)
