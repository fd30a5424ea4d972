"""Pools vectors of tokens to one vector per text."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.errors import HeddleError
from heddle.nn.layout import PADDING, Layout
from heddle.nn.numeric import wide_dtype


def pool(hidden: Float[Tensor, "B T D"], layout: Layout, pooling: str, skip: int = 0) -> Float[Tensor, "B D"]:
    """One vector per row from its real tokens: the `first`, the `last`, their `mean` or their `max` (L1-93), their sum over the
    root of their number (`mean_sqrt`), or their mean with weights 1, 2, … (`weighted_mean`; Muennighoff 2022).

    A row of only padding gives 0, as in attention.

    Args:
        skip: number of tokens at the start of each row to leave out; the others keep their weights.

    Raises:
        HeddleError: texts are packed, so their tokens would be mixed; or the layout has another shape.
    """
    if hidden.shape[:-1] != layout.position.shape:
        shape = list(layout.position.shape)
        raise HeddleError(
            f"hidden vectors of shape {list(hidden.shape)} cannot be pooled by a layout for [B T] = {shape}"
        )
    if layout.documents > 1:
        raise HeddleError("pooling returns one vector per row, so texts cannot be packed: put each text in its own row")
    real, rows = layout.real, torch.arange(layout.rows, device=hidden.device)
    real = real & (layout.position >= skip) if skip else real
    if pooling in ("first", "last"):
        first, from_end = real.int().argmax(1), real.flip(1).int().argmax(1)
        pooled = hidden[rows, first if pooling == "first" else layout.width - 1 - from_end]
    elif pooling == "max":
        pooled = hidden.masked_fill(~real[..., None], -torch.inf).amax(1)
    else:
        wide = hidden.to(wide_dtype(hidden.dtype)).masked_fill(~real[..., None], 0.0)
        weights = real * (layout.position + 1) if pooling == "weighted_mean" else real.long()
        count = weights.sum(1, keepdim=True).clamp(min=1)
        total = (wide * weights[..., None]).sum(1) if pooling == "weighted_mean" else wide.sum(1)
        pooled = (total / (count.to(wide.dtype).sqrt() if pooling == "mean_sqrt" else count)).to(hidden.dtype)
    return pooled.masked_fill(~real.any(1, keepdim=True), 0.0)


def unpack_rows(hidden: Float[Tensor, "B T D"], layout: Layout) -> tuple[Float[Tensor, "R S D"], Layout]:
    """Move packed texts to a row each: R = B · N for at most N texts in each of B rows.

    Text n of row b goes to row b · N + n; missing texts are rows of padding. Vectors do not change.
    """
    rows, texts = layout.rows, layout.documents
    width = max(1, layout.width if layout.longest is None else layout.longest)
    # Padding goes to an extra last row, which is dropped.
    row = torch.arange(rows, device=hidden.device)[:, None] * texts + layout.segment
    row = torch.where(layout.real, row, rows * texts)
    position_in_text = torch.where(layout.real, layout.position, 0)
    unpacked = hidden.new_zeros(rows * texts + 1, width, hidden.shape[-1])
    unpacked = unpacked.index_put((row, position_in_text), hidden)[:-1]
    segment = torch.full((rows * texts + 1, width), PADDING, device=hidden.device)
    segment = segment.index_put((row, position_in_text), torch.zeros_like(row))[:-1]
    position = torch.arange(width, device=hidden.device).expand(rows * texts, width)
    return unpacked, Layout(position, segment, "padded")
