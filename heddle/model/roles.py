"""What each parameter is: one ordered table over names, which the optimizer, the accounts and the initial values read."""

import re
from typing import Literal, NamedTuple

from heddle.errors import HeddleError

Role = Literal["table", "matrix", "stack", "vector"]
Initial = Literal["zero", "one", "normal", "position", "branch", "own"]


class Row(NamedTuple):
    """What the parameters are whose names fit a pattern.

    Attributes:
        pattern: of the name.
        part: what the accounts call it.
        role: how an optimizer updates them: `matrix` and `stack` (of matrices [E m n], each as if it were alone) by Muon where
            that is chosen; `table` and `vector` by AdamW, and vectors without decay. What has one dimension is a vector.
        initial: what it is filled with: `zero`, `one`, `normal` numbers; `position`, normal with a spread of its own; `branch`, the
            last matrix of a branch, whose output is added to the stream; `own`, by its module's constructor.
    """

    pattern: str
    part: str
    role: Role
    initial: Initial


STACK = r"^(encoder|decoder)\."
BLOCK = STACK + r"blocks\.\d+\."
# The first row that fits decides; the accounts display parts in this order.
ROWS = (
    Row(r"^embedding\.weight$", "token embedding", "table", "normal"),
    Row(r"^source_embedding\.weight$", "source embedding", "table", "normal"),
    Row(rf"{STACK}entry\.positions\.weight$", "positions", "table", "position"),
    Row(rf"{STACK}entry\.types\.weight$", "token types", "table", "normal"),
    Row(rf"{STACK}relative\.\d+\.weight$", "relative positions", "table", "normal"),
    Row(rf"{BLOCK}mixer\.inner\..*weight$", "custom mixer", "matrix", "own"),
    Row(rf"{BLOCK}mixer\.inner\.", "custom mixer", "table", "own"),
    Row(rf"{BLOCK}mixer\.q\.weight$", "q", "matrix", "normal"),
    Row(rf"{BLOCK}mixer\.k\.weight$", "k", "matrix", "normal"),
    Row(rf"{BLOCK}mixer\.v\.weight$", "v", "matrix", "normal"),
    Row(rf"{BLOCK}mixer\.o\.weight$", "o", "matrix", "branch"),
    Row(rf"{BLOCK}cross\.[qkv]\.weight$", "cross-attention", "matrix", "normal"),
    Row(rf"{BLOCK}cross\.o\.weight$", "cross-attention", "matrix", "branch"),
    Row(rf"{BLOCK}mixer\.weight$", "convolution", "table", "branch"),
    Row(rf"{BLOCK}mixer\.(input|carry)\.weight$", "recurrent", "matrix", "normal"),
    Row(rf"{BLOCK}mixer\.output\.weight$", "recurrent", "matrix", "branch"),
    Row(rf"{BLOCK}ffn\.(up|gate)\.weight$", "feed-forward", "matrix", "normal"),
    Row(rf"{BLOCK}ffn\.down\.weight$", "feed-forward", "matrix", "branch"),
    Row(rf"{BLOCK}ffn\.router\.weight$", "router", "table", "normal"),
    Row(rf"{BLOCK}ffn\.router\.bias$", "router", "vector", "zero"),
    Row(rf"{BLOCK}ffn\.experts\.(up|gate)$", "experts", "stack", "normal"),
    Row(rf"{BLOCK}ffn\.experts\.down$", "experts", "stack", "branch"),
    Row(rf"{BLOCK}ffn\.experts\.(up|gate|down)_bias$", "experts", "vector", "zero"),
    Row(rf"{BLOCK}ffn\.shared\.(up|gate)\.weight$", "shared experts", "matrix", "normal"),
    Row(rf"{BLOCK}ffn\.shared\.down\.weight$", "shared experts", "matrix", "branch"),
    Row(rf"{BLOCK}ffn\.shared\.\w+\.bias$", "shared experts", "vector", "zero"),
    Row(rf"{BLOCK}ffn\.shared_gate\.weight$", "shared experts", "matrix", "normal"),
    Row(rf"{BLOCK}mixer\.[qkvo]\.bias$", "attention biases", "vector", "zero"),
    Row(rf"{BLOCK}cross\.[qkvo]\.bias$", "cross-attention biases", "vector", "zero"),
    Row(rf"{BLOCK}mixer\.bias$", "convolution biases", "vector", "zero"),
    Row(rf"{BLOCK}mixer\.(input|carry|output)\.bias$", "recurrent biases", "vector", "zero"),
    Row(rf"{BLOCK}ffn\.(up|gate|down)\.bias$", "feed-forward biases", "vector", "zero"),
    Row(rf"{BLOCK}ffn\.inner\..*weight$", "custom feed-forward", "matrix", "own"),
    Row(rf"{BLOCK}ffn\.inner\.", "custom feed-forward", "table", "own"),
    Row(rf"{BLOCK}(mixer|cross)\.[qk]_norm\.weight$", "query and key norms", "vector", "one"),
    Row(rf"{BLOCK}(mixer|cross)\.[qk]_norm\.bias$", "query and key norms", "vector", "zero"),
    Row(rf"{BLOCK}\w+_residual\.\w+\.weight$", "norm gains", "vector", "one"),
    Row(rf"{BLOCK}\w+_residual\.\w+\.bias$", "norm shifts", "vector", "zero"),
    Row(rf"{STACK}entry\.norm\.weight$", "entry norm", "vector", "one"),
    Row(rf"{STACK}entry\.norm\.bias$", "entry norm", "vector", "zero"),
    Row(rf"{STACK}final_norm\.weight$", "final norm", "vector", "one"),
    Row(rf"{STACK}final_norm\.bias$", "final norm", "vector", "zero"),
    Row(r"^head\.weight$", "head", "table", "normal"),
    Row(r"^head\.bias$", "head bias", "vector", "zero"),
    Row(r"^head\.pooler\.dense\.weight$", "pooler", "table", "normal"),
    Row(r"^head\.pooler\.dense\.bias$", "pooler", "vector", "zero"),
    Row(r"^head\.scores\.weight$", "classifier", "table", "normal"),
    Row(r"^head\.scores\.bias$", "classifier", "vector", "zero"),
    Row(r"^head\.dense\.weight$", "head transform", "table", "normal"),
    Row(r"^head\.norm\.weight$", "head transform", "vector", "one"),
    Row(r"^head\.(dense|norm)\.bias$", "head transform", "vector", "zero"),
)
OTHER = Row("", "other", "vector", "normal")  # a vector that no row names
PARTS = tuple(dict.fromkeys(row.part for row in (*ROWS, OTHER)))


def row_of(name: str, dimensions: int) -> Row:
    """What a parameter is.

    Args:
        name: as `named_parameters` has it.
        dimensions: how many it has.

    Raises:
        HeddleError: it has two or more dimensions and no row names it, so nobody knows how to update it.
    """
    found = next((row for row in ROWS if re.search(row.pattern, name)), OTHER)
    if found is OTHER and dimensions > 1:
        raise HeddleError(
            f"{name} has {dimensions} dimensions and no row in heddle/model/roles.py says what it is: add one"
        )
    return found


def role(name: str, dimensions: int) -> str:
    """What a parameter is for an optimizer: `table`, `matrix` (or a stack of them) or `vector`.

    Raises:
        HeddleError: no row names a parameter of two or more dimensions.
    """
    found = row_of(name, dimensions).role
    if dimensions < 2:
        return "vector"
    if found == "stack":
        return "matrix"
    # A user's own weight of three dimensions, as of a convolution: not known to be a stack of matrices.
    return "table" if found == "matrix" and dimensions > 2 else found
