"""Tables with one learned vector per id."""

from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.checks import wrong
from heddle.errors import HeddleError

ID_DTYPES = (torch.int64, torch.int32)  # dtypes that can index a table


class Embedding(nn.Module):
    """A table with one row per id: tokens (L0-14), positions (L0-15), or types such as first and second sentence.

    Ids start at 0; an id beyond the table raises IndexError (D-23).
    """

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(rows, dim), -1 / sqrt(dim), 1 / sqrt(dim)))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(ids, self.weight)


def check_ids(
    name: str, ids: object, vocab_size: int, shape: tuple[int, ...] | None = None, function: str = "model"
) -> None:
    """Check that a value is a tensor of ids of this shape, by default [B T], from 0 to `vocab_size` - 1.

    Values are checked on a CPU only, since reading them from a GPU would wait for it. In a compiled graph or on the meta
    device only type and shape are checked.

    Raises:
        HeddleError: wrong type or shape, or an id is out of range.
    """
    like = "[B T]" if shape is None else list(shape)
    fits = isinstance(ids, Tensor) and (ids.dim() == 2 if shape is None else tuple(ids.shape) == shape)
    if not isinstance(ids, Tensor) or not fits or ids.dtype not in ID_DTYPES:
        raise wrong(function, name, ids, f"a tensor of whole numbers of shape {like}")
    if torch.compiler.is_compiling() or type(ids) is not Tensor or ids.device.type != "cpu" or not ids.numel():
        return
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise HeddleError(
            f"{function}: {name} contain the id {low if low < 0 else high}; ids must be from 0 to {vocab_size - 1}"
        )
