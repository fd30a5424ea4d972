"""From a vector per token to one vector per text."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.errors import HeddleError
from heddle.nn.layout import PADDING, Layout
from heddle.nn.numeric import wide_dtype


def pool(hidden: Float[Tensor, "B T D"], layout: Layout, how: str) -> Float[Tensor, "B D"]:
    """One vector per row from its real tokens: the `first`, the `last`, their `mean` or their `max` (L1-93).

    A row of only padding gives 0, as in attention.

    Raises:
        HeddleError: several texts are packed into one row, so their tokens would be mixed; or the layout has another shape.
    """
    if hidden.shape[:-1] != layout.position.shape:
        places = list(layout.position.shape)
        raise HeddleError(
            f"hidden vectors of shape {list(hidden.shape)} cannot be pooled by a layout for [B T] = {places}"
        )
    if layout.documents > 1:
        raise HeddleError("pooling returns one vector per row, so texts cannot be packed: put each text in its own row")
    real, rows = layout.real, torch.arange(layout.rows, device=hidden.device)
    if how in ("first", "last"):
        first, from_end = real.int().argmax(1), real.flip(1).int().argmax(1)
        found = hidden[rows, first if how == "first" else layout.width - 1 - from_end]
    elif how == "max":
        found = hidden.masked_fill(~real[..., None], -torch.inf).amax(1)
    else:
        wide = hidden.to(wide_dtype(hidden.dtype)).masked_fill(~real[..., None], 0.0)
        found = (wide.sum(1) / real.sum(1, keepdim=True).clamp(min=1)).to(hidden.dtype)
    return found.masked_fill(~real.any(1, keepdim=True), 0.0)


def apart(hidden: Float[Tensor, "B T D"], layout: Layout) -> tuple[Float[Tensor, "R S D"], Layout]:
    """The texts that share rows, each in a row of its own: R = B · N for at most N texts in a row of B.

    Text n of row b comes to row b · N + n; a text that is not there is a row of padding. Vectors stay as they are.
    """
    rows, texts = layout.rows, layout.documents
    width = max(1, layout.width if layout.longest is None else layout.longest)
    # What is padding goes to a last row, which is left out.
    row = torch.arange(rows, device=hidden.device)[:, None] * texts + layout.segment
    row = torch.where(layout.real, row, rows * texts)
    place = torch.where(layout.real, layout.position, 0)
    alone = hidden.new_zeros(rows * texts + 1, width, hidden.shape[-1])
    alone = alone.index_put((row, place), hidden)[:-1]
    segment = torch.full((rows * texts + 1, width), PADDING, device=hidden.device)
    segment = segment.index_put((row, place), torch.zeros_like(row))[:-1]
    position = torch.arange(width, device=hidden.device).expand(rows * texts, width)
    return alone, Layout(position, segment, "padded")
