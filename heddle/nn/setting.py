"""Settings that all layers of a stack share."""

from dataclasses import dataclass, field, replace

from heddle.config.layers import DropoutConfig
from heddle.nn.dropout import Dropout


@dataclass(frozen=True)
class Setting:
    """The stack that a layer is built for.

    Attributes:
        dim: D, the width of the hidden vectors.
        causal: whether a token sees only itself and the tokens before it.
        dropout: the dropout convention.
        prefix: whether tokens of a prefix see each other in both directions.
        layer: the layer's number in its stack.
    """

    dim: int
    causal: bool = True
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    prefix: bool = False
    layer: int = 0

    def at(self, layer: int) -> "Setting":
        """A copy for another layer."""
        return replace(self, layer=layer)

    def drop(self, rate: float) -> Dropout:
        """Dropout at a rate, in the stack's convention."""
        return Dropout(rate, self.dropout.style == "classic", self.dropout.mask == "batch")
