"""Tables with a trained vector for each id."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.checks import wrong
from heddle.errors import HeddleError

WHOLE = (torch.int64, torch.int32)  # what a table can be asked with


class Embedding(nn.Module):
    """A table with one row per id from 0: of tokens (L0-14), positions (L0-15), or types such as first and second sentence.

    An id beyond it is an IndexError (D-23).
    """

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(ids, self.weight)


def check_ids(name: str, ids: object, most: int, shape: tuple[int, ...] | None = None) -> None:
    """Refuse what is no tensor of ids [B T] from 0 to `most` - 1.

    Their values are looked at on a CPU only: a GPU would have to be waited for. Nor are they in a compiled graph, or where
    nothing is computed.

    Raises:
        HeddleError: it has another type or shape, or an id is out of range.
    """
    like = "[B T]" if shape is None else list(shape)
    if not isinstance(ids, Tensor) or ids.dtype not in WHOLE or ids.dim() != 2 or shape not in (None, tuple(ids.shape)):
        raise wrong("model", name, ids, f"a tensor of whole numbers of shape {like}")
    if torch.compiler.is_compiling() or type(ids) is not Tensor or ids.device.type != "cpu" or not ids.numel():
        return
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= most:
        raise HeddleError(f"model: {name} hold {low if low < 0 else high}; ids are 0 to {most - 1}")
