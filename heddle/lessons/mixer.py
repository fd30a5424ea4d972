"""The definition's attention as a mixer that trains, with a fault if one is named.

heddle train 'decoder.block.mixer={kind="custom",target="heddle.lessons.mixer:Attention",options={fault="no mask"}}'
"""

from jaxtyping import Float
from torch import Tensor, nn

from heddle.lessons.definition import attention
from heddle.lessons.fault import changed
from heddle.lessons.faults import fault as named
from heddle.nn.layout import Layout


class Attention(nn.Module):
    """Causal self-attention with heads, one text per row.

    Args:
        dim: width D.
        heads: their number.
        fault: a fault of attention, by its name in `heddle.lessons.faults`.

    Raises:
        HeddleError: the fault is unknown.
    """

    def __init__(self, dim: int, heads: int = 4, fault: str | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.heads = heads
        self.steps = (changed() if fault is None else named(fault).steps()).attention

    def forward(self, x: Float[Tensor, "B T D"], layout: Layout | None = None) -> Float[Tensor, "B T D"]:
        return attention(x, dict(self.named_parameters()), self.heads, self.steps)
