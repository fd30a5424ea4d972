"""The entry before the first block: positions, token types, a norm, dropout, and a projection of token embeddings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import wrong
from heddle.config.entry import EntryConfig
from heddle.errors import HeddleError
from heddle.nn.block import MATRICES
from heddle.nn.custom import without_custom
from heddle.nn.dropout import Dropout
from heddle.nn.embedding import Embedding, check_ids
from heddle.nn.layout import EVEN, Layout
from heddle.nn.norm import make_norm
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Hidden
from heddle.nn.position import SinusoidalPositions


class Entry(nn.Module):
    """The entry before the first block: positions, token types, a norm, dropout, and a projection of token embeddings.

    Positions are added to the token vectors or concatenated with them (L0-16, D-28). The projection exists only if the sum
    has another width than the model (ELECTRA).

    Raises:
        HeddleError: in `forward`, if types are passed without a table of types.
    """

    def __init__(self, config: EntryConfig, dim: int, context: int, dropout: Dropout) -> None:
        super().__init__()
        width = config.positions_dim(dim)
        self.scale = config.factor(dim)
        self.offset = config.offset
        self.concat = config.combine == "concat"
        self.places = context + config.offset
        self.positions = _positions(config.positions, self.places, width)
        inner = config.token_dim or dim
        self.types = Embedding(config.types, inner) if config.types else None
        self.norm = None if config.norm is None else make_norm(config.norm, inner)
        self.dropout = dropout
        self.project = None if inner == dim else nn.Linear(inner, dim)

    def forward(self, x: Float[Tensor, "B T d"], layout: Layout, types: Int[Tensor, "B T"] | None = None) -> Hidden:
        self.check_types(types, tuple(layout.position.shape))
        x = x * self.scale if self.scale != 1.0 else x
        if self.positions is not None:
            places = self.places_of(layout, x.dtype)
            x = torch.cat((x, places.expand(*x.shape[:2], -1)), dim=-1) if self.concat else x + places
        if self.types is not None:
            types = torch.zeros_like(layout.position) if types is None else types
            x = x + self.types(types).to(x.dtype)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.project is None else self.project(x)

    def check_types(self, types: Int[Tensor, "B T"] | None, shape: tuple[int, ...]) -> None:
        """Refuse types of another shape, or without a table of them."""
        if types is not None:
            if self.types is None:
                raise HeddleError("this stack has no table of token types: leave out types, or set entry.types")
            check_ids("types", types, self.types.weight.shape[0], shape)

    def places_of(self, layout: Layout, dtype: torch.dtype) -> Float[Tensor, "B T d"]:
        """Vectors of the tokens' positions: looked up in a learned table, or computed in fp32 or wider."""
        assert self.positions is not None
        at = layout.position + self.offset
        if isinstance(self.positions, SinusoidalPositions):
            return self.positions(at, wide_dtype(dtype)).to(dtype)
        if layout.form not in EVEN:
            # Padding may lie beyond the table. It gets the first row; no token attends to it.
            at = at.masked_fill(~layout.real, 0)
        check_ids("the layout's positions", at, self.places)
        return self.positions(at).to(dtype)


def first_matrix(blocks: nn.Module) -> nn.Module | None:
    """The first module whose weights are in the working precision, or None; a user's module keeps its dtype."""
    return next((module for module in without_custom(blocks) if isinstance(module, MATRICES)), None)


def check_hidden(function: str, hidden: object, width: int, places: str = "… ") -> None:
    """Check that a value is hidden vectors.

    Args:
        function: its name for the error.
        hidden: vectors of shape [… D].
        width: D.
        places: the leading dimensions; `B T ` requires exactly two.

    Raises:
        HeddleError: it is something else, or has another shape.
    """
    fits = isinstance(hidden, Tensor) and hidden.is_floating_point() and hidden.shape[-1:] == (width,)
    if not fits or (places == "B T " and isinstance(hidden, Tensor) and hidden.dim() != 3):
        raise wrong(function, "hidden", hidden, f"floating-point numbers of shape [{places}{width}]")


def check_vectors(x: object, width: int, matrix: nn.Module | None) -> None:
    """Check that a value can enter a stack.

    Args:
        x: vectors [B T d].
        width: d.
        matrix: the stack's first, which determines the dtype.

    Raises:
        HeddleError: it is something else, has another shape or, without autocast, another dtype.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 3 or x.shape[-1] != width:
        raise wrong("Stack", "x", x, f"a tensor of floating-point numbers of shape [B T {width}]")
    dtype = x.dtype if matrix is None else next(matrix.parameters()).dtype
    if x.dtype != dtype and (x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type)):
        name = str(dtype).removeprefix("torch.")
        raise wrong(
            "Stack", "x", x, f"of {name}, as the stack's weights are: x.to({dtype}), or another stack.to(dtype)"
        )


def _positions(kind: str, context: int, dim: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "learned":
        return Embedding(context, dim)
    return SinusoidalPositions(dim, halves=kind == "sinusoidal_halves")
