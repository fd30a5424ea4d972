"""Roles of parameters: one ordered table of name patterns for the optimizer, the accounts and the initial weights."""

import re
from typing import Literal, NamedTuple

from heddle.errors import HeddleError

Role = Literal["table", "matrix", "stack", "vector"]
DECAYED: tuple[Role, ...] = ("table", "matrix")  # roles with weight decay; a stack is updated as matrices
Initial = Literal["zero", "one", "normal", "position", "branch", "constructor"]


class ParameterRole(NamedTuple):
    """The role of the parameters whose names match a pattern.

    Attributes:
        pattern: regular expression for the name.
        component: their name in the accounts.
        role: how the optimizer updates them: `matrix` and `stack` (matrices [E m n], each updated separately) by Muon if that
            is chosen; `table` and `vector` by AdamW, vectors without decay. A parameter with one dimension is a vector.
        initial: the initial values: `zero`; `one`; `normal`; `position`, normal with `position_std`; `branch`, for the last
            matrix of a branch, whose output is added to the residual stream; `constructor`, set by the module's constructor.
    """

    pattern: str
    component: str
    role: Role
    initial: Initial


STACK = r"^(encoder|decoder)\."
BLOCK = STACK + r"blocks\.\d+\."
# The first matching row decides; the accounts show components in this order.
ROWS = (
    ParameterRole(r"^embedding\.weight$", "token embedding", "table", "normal"),
    ParameterRole(r"^source_embedding\.weight$", "source embedding", "table", "normal"),
    ParameterRole(rf"{STACK}entry\.positions\.weight$", "positions", "table", "position"),
    ParameterRole(rf"{STACK}entry\.types\.weight$", "token types", "table", "normal"),
    ParameterRole(rf"{STACK}entry\.project\.weight$", "entry projection", "table", "normal"),
    ParameterRole(rf"{STACK}entry\.project\.bias$", "entry projection", "vector", "zero"),
    ParameterRole(rf"{STACK}relative\.\d+\.weight$", "relative positions", "table", "normal"),
    # Not "matrix": Muon does not suit the factors of a product. They have weight decay like matrices.
    ParameterRole(rf"{BLOCK}.*\.lora_[ab]$", "adapters", "table", "constructor"),
    ParameterRole(rf"{BLOCK}mixer\.inner\..*weight$", "custom mixer", "matrix", "constructor"),
    ParameterRole(rf"{BLOCK}mixer\.inner\.", "custom mixer", "table", "constructor"),
    ParameterRole(rf"{BLOCK}mixer\.q\.weight$", "q", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.k\.weight$", "k", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.v\.weight$", "v", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.(q_down|down|r)\.weight$", "latent vectors", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.(q_down|down|r)\.bias$", "attention biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}mixer\.down_norm\.weight$", "latent vectors", "vector", "one"),
    ParameterRole(rf"{BLOCK}mixer\.o\.weight$", "o", "matrix", "branch"),
    ParameterRole(rf"{BLOCK}cross\.[qkv]\.weight$", "cross-attention", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}cross\.o\.weight$", "cross-attention", "matrix", "branch"),
    ParameterRole(rf"{BLOCK}mixer\.weight$", "convolution", "table", "branch"),
    ParameterRole(rf"{BLOCK}mixer\.(input|carry)\.weight$", "recurrent", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.output\.weight$", "recurrent", "matrix", "branch"),
    ParameterRole(rf"{BLOCK}ffn\.(up|gate)\.weight$", "feed-forward", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}ffn\.down\.weight$", "feed-forward", "matrix", "branch"),
    ParameterRole(rf"{BLOCK}ffn\.router\.weight$", "router", "table", "normal"),
    ParameterRole(rf"{BLOCK}ffn\.router\.(score_)?bias$", "router", "vector", "zero"),
    ParameterRole(rf"{BLOCK}ffn\.experts\.(up|gate)$", "experts", "stack", "normal"),
    ParameterRole(rf"{BLOCK}ffn\.experts\.down$", "experts", "stack", "branch"),
    ParameterRole(rf"{BLOCK}ffn\.experts\.(up|gate|down)_bias$", "experts", "vector", "zero"),
    ParameterRole(rf"{BLOCK}ffn\.shared\.(up|gate)\.weight$", "shared experts", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}ffn\.shared\.down\.weight$", "shared experts", "matrix", "branch"),
    ParameterRole(rf"{BLOCK}ffn\.shared\.\w+\.bias$", "shared experts", "vector", "zero"),
    ParameterRole(rf"{BLOCK}ffn\.shared_gate\.weight$", "shared experts", "matrix", "normal"),
    ParameterRole(rf"{BLOCK}mixer\.[qkvo]\.bias$", "attention biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}cross\.[qkvo]\.bias$", "cross-attention biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}(mixer|cross)\.sinks$", "attention sinks", "vector", "zero"),
    ParameterRole(rf"{BLOCK}mixer\.bias$", "convolution biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}mixer\.(input|carry|output)\.bias$", "recurrent biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}ffn\.(up|gate|down)\.bias$", "feed-forward biases", "vector", "zero"),
    ParameterRole(rf"{BLOCK}(mixer|cross)\.scores\.inner\.", "custom mixer", "table", "constructor"),
    ParameterRole(rf"{BLOCK}ffn\.inner\..*weight$", "custom feed-forward", "matrix", "constructor"),
    ParameterRole(rf"{BLOCK}ffn\.inner\.", "custom feed-forward", "table", "constructor"),
    ParameterRole(rf"{BLOCK}(mixer|cross)\.[qk]_norm\.weight$", "query and key norms", "vector", "one"),
    ParameterRole(rf"{BLOCK}(mixer|cross)\.[qk]_norm\.bias$", "query and key norms", "vector", "zero"),
    ParameterRole(rf"{BLOCK}\w+_residual\.\w+\.weight$", "norm gains", "vector", "one"),
    ParameterRole(rf"{BLOCK}\w+_residual\.\w+\.bias$", "norm shifts", "vector", "zero"),
    ParameterRole(rf"{STACK}entry\.norm\.weight$", "entry norm", "vector", "one"),
    ParameterRole(rf"{STACK}entry\.norm\.bias$", "entry norm", "vector", "zero"),
    ParameterRole(rf"{STACK}final_norm\.weight$", "final norm", "vector", "one"),
    ParameterRole(rf"{STACK}final_norm\.bias$", "final norm", "vector", "zero"),
    ParameterRole(r"^head\.weight$", "head", "table", "normal"),
    ParameterRole(r"^head\.bias$", "head bias", "vector", "zero"),
    ParameterRole(r"^head\.pooler\.dense\.weight$", "pooler", "table", "normal"),
    ParameterRole(r"^head\.pooler\.dense\.bias$", "pooler", "vector", "zero"),
    ParameterRole(r"^head\.dense\.\d+\.linear\.weight$", "pooler", "table", "normal"),
    ParameterRole(r"^head\.dense\.\d+\.linear\.bias$", "pooler", "vector", "zero"),
    ParameterRole(r"^head\.scores\.weight$", "classifier", "table", "normal"),
    ParameterRole(r"^head\.scores\.bias$", "classifier", "vector", "zero"),
    ParameterRole(r"^head\.dense\.weight$", "head transform", "table", "normal"),
    ParameterRole(r"^head\.norm\.weight$", "head transform", "vector", "one"),
    ParameterRole(r"^head\.(dense|norm)\.bias$", "head transform", "vector", "zero"),
)
OTHER = ParameterRole("", "other", "vector", "normal")  # a vector that matches no row
COMPONENTS = tuple(dict.fromkeys(row.component for row in (*ROWS, OTHER)))


def row_of(name: str, dimensions: int) -> ParameterRole:
    """The row of a parameter.

    Args:
        name: as `named_parameters` gives it.
        dimensions: its number of dimensions.

    Raises:
        HeddleError: it has two or more dimensions and matches no row, so its update is undefined.
    """
    row = next((row for row in ROWS if re.search(row.pattern, name)), OTHER)
    if row is OTHER and dimensions > 1:
        raise HeddleError(
            f"{name} has {dimensions} dimensions, but no row in heddle/model/roles.py matches it: add one"
        )
    return row


def role(name: str, dimensions: int) -> str:
    """A parameter's role for an optimizer: `table`, `matrix` (also for a stack of them) or `vector`.

    Raises:
        HeddleError: a parameter of two or more dimensions matches no row.
    """
    role_of_row = row_of(name, dimensions).role
    if dimensions < 2:
        return "vector"
    if role_of_row == "stack":
        return "matrix"
    # A user's weight with three dimensions, such as a convolution's, need not be a stack of matrices.
    return "table" if role_of_row == "matrix" and dimensions > 2 else role_of_row


def layer_of(name: str) -> str:
    """The layer of a parameter or module, abbreviated: `decoder.3` for a block, `embedding`, `head`, `decoder.entry`."""
    first, *inner = name.split(".")
    if first not in ("encoder", "decoder") or not inner:
        return first
    return f"{first}.{inner[1] if inner[0] == 'blocks' else inner[0]}"
