"""The entry, before the first block, as data."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config
from heddle.config.layers import NormConfig
from heddle.config.sizes import Positive, Rate, Size


class EntryConfig(Config):
    """Positions, scaling, types, norm and dropout of token embeddings before the first block."""

    # Absolute positions; relative ones belong to the mixer. `sinusoidal` alternates sines and cosines (Vaswani et al. 2017,
    # 3.5), `sinusoidal_halves` has all sines before all cosines (Marian).
    positions: Literal["learned", "sinusoidal", "sinusoidal_halves", "none"] = "none"
    combine: Literal["sum", "concat"] = "sum"  # (L0-16, D-28)
    position_dim: Size | None = None  # with concat: width of the position part; None: half of dim
    # Width of the summed vectors, which a linear map then projects to the model's (ELECTRA, ALBERT). None: dim, without a map.
    token_dim: Size | None = None
    # Rows of a learned table before position 0: 2 in BART's and OPT's.
    offset: Annotated[int, Field(ge=0, le=2**16)] = 0
    # Embeddings times √dim (Vaswani et al. 2017, 3.4; D-30), or times a number (Granite).
    scale: bool | Positive = False
    types: Annotated[int, Field(ge=0, le=2**16)] = 0  # token types (segments) with a vector each (BERT)
    norm: NormConfig | None = None  # after the sum
    dropout: Rate = 0.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.combine == "concat" and self.positions == "none":
            raise ValueError("combine = 'concat' needs positions to concatenate: set positions")
        if self.combine == "concat" and self.token_dim is not None:
            raise ValueError(
                "token_dim applies to combine = 'sum' only; with concat, position_dim divides the model's width"
            )
        if self.offset and self.positions != "learned":
            raise ValueError("offset applies to learned positions only: set positions = 'learned', or leave it out")
        if self.combine == "sum" and self.position_dim is not None:
            raise ValueError(
                "position_dim applies to combine = 'concat' only; summed positions are as wide as the model"
            )
        return self

    def factor(self, dim: int) -> float:
        """The factor on embeddings."""
        return dim**0.5 if self.scale is True else self.scale or 1.0

    def tokens_dim(self, dim: int) -> int:
        """Width of a token's vector in the table."""
        return (self.token_dim or dim) if self.combine == "sum" else dim - self.positions_dim(dim)

    def positions_dim(self, dim: int) -> int:
        """Width of a position's vector."""
        return (self.token_dim or dim) if self.combine == "sum" else (self.position_dim or dim // 2)
