"""Rearrange the rows of a batch: select, truncate, pad, split into documents, pack."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from heddle.data.batch import IGNORED, Batch
from heddle.nn.layout import PADDING, Layout
from heddle.prove.verdict import Trace

FILL = 0  # the id of padding; its value must not matter
COLUMNS = (
    "tokens",
    "layout",
    "types",
)  # as wide as the tokens; so are targets and weights if tokens are scored


def by_token(batch: Batch) -> bool:
    """Whether targets are per token rather than per row."""
    return batch.weights.shape == batch.tokens.shape


def truncate(batch: Batch, width: int) -> Batch:
    """The first `width` tokens of each row, with their targets."""
    names = (*COLUMNS, *(("targets", "weights") if by_token(batch) else ()))
    return map_parts(batch, names, lambda part: part[:, :width])


def pad_rows(batch: Batch, by: int, side: Literal["right", "left"]) -> Batch:
    """Add `by` tokens of padding on one side of each row, and of its source if there is one."""
    parts = batch.parts()
    amounts = (by, 0) if side == "left" else (0, by)
    fills: dict[str, float] = {"tokens": FILL, "source": FILL, "types": 0, "source_types": 0}
    if by_token(batch):
        fills |= {"targets": IGNORED, "weights": 0.0}
    for name in fills.keys() & parts.keys():
        parts[name] = F.pad(parts[name], amounts, value=fills[name])
    for name, tokens in (("layout", batch.tokens), ("source_layout", batch.source)):
        if tokens is not None:
            parts[name] = _padded(parts.get(name) or Layout.whole(*tokens.shape), by, side)
    return Batch(**parts)


def _padded(layout: Layout, by: int, side: str) -> Layout:
    width = layout.width + by
    longest = layout.width if layout.longest is None else layout.longest
    amounts = (0, by) if side == "right" else (by, 0)
    padded = layout.map_tensors(lambda tensor: F.pad(tensor, amounts))
    padded = replace(padded, segment=F.pad(layout.segment, amounts, value=PADDING), form="packed", longest=longest)
    if side == "right":
        positions = torch.arange(layout.width, width).expand(layout.rows, by)
        form: Any = "padded" if layout.form in ("whole", "padded") else "packed"
        padded = replace(padded, position=torch.cat((layout.position, positions), dim=1), form=form)
    return padded


def map_parts(batch: Batch, names: Sequence[str], change: Any) -> Batch:
    """Apply a function to some parts of a batch, or to the tensors of a layout."""
    parts = batch.parts()
    for name in set(names) & parts.keys():
        part = parts[name]
        parts[name] = part.map_tensors(change) if isinstance(part, Layout) else change(part)
    return Batch(**parts)


def take_rows(batch: Batch, rows: Int[Tensor, " N"]) -> Batch:
    """Select rows in this order."""
    return map_parts(batch, tuple(batch.parts()), lambda part: part[rows])


def select_targets(batch: Batch, selected: Tensor) -> Batch:
    """The batch with only some targets, Bool like `targets`; the others get weight 0."""
    weights = torch.where(selected, batch.weights, torch.zeros_like(batch.weights))
    return replace(batch, weights=weights)


def mask_outside(batch: Batch, inside: Tensor) -> Batch:
    """The batch with padding in place of all other tokens, Bool[B T]."""
    layout = replace(batch.layout, segment=torch.where(inside, batch.layout.segment, PADDING), form="packed")
    return replace(select_targets(batch, inside), layout=layout)


def content(batches: Sequence[Batch]) -> Trace:
    """The content of batches row by row, without padding, which depends on the other rows."""
    values_by_name: dict[str, list[Tensor]] = {}
    for batch in batches:
        parts = batch.parts()
        real = batch.layout.real
        source_real = None if batch.source_layout is None else batch.source_layout.real
        for name, part in parts.items():
            mask = source_real if name.startswith("source") else real
            tensors = {name: part}
            if isinstance(part, Layout):
                names = ("positions", "segments", "prefixes")
                tensors = {f"{kind} of {name}": tensor for kind, tensor in zip(names, part.tensors(), strict=False)}
            for place, tensor in tensors.items():
                is_masked = mask is not None and tensor.shape == mask.shape
                values_by_name.setdefault(place, []).append(tensor[mask].flatten() if is_masked else tensor.flatten())
        values_by_name.setdefault("rows", []).append(real.sum(1))
    return {name: torch.cat(values) for name, values in values_by_name.items()}


@dataclass(frozen=True)
class Document:
    """One segment of a row.

    Attributes:
        inside: Bool[B T], its tokens in the original batch.
        alone: the document as a batch of one row, with its part of the source.
    """

    inside: Tensor
    alone: Batch


def documents(batch: Batch, limit: int) -> list[Document]:
    """The first documents of a batch that have targets."""
    result: list[Document] = []
    for row in range(batch.layout.rows):
        for number in range(batch.layout.documents):
            inside = (torch.arange(batch.layout.rows)[:, None] == row) & (batch.layout.segment == number)
            if inside.any() and batch.weights[inside].any() and len(result) < limit:
                result.append(Document(inside, _extract_document(batch, row, number, inside)))
    return result


def _extract_document(batch: Batch, row: int, number: int, inside: Tensor) -> Batch:
    parts = {name: getattr(batch, name)[inside][None] for name in ("tokens", "targets", "weights")}
    if batch.types is not None:
        parts["types"] = batch.types[inside][None]
    if batch.source is not None:
        source_mask = torch.ones_like(batch.source[row], dtype=torch.bool)
        if batch.source_layout is not None:
            source_mask = batch.source_layout.segment[row] == (number if batch.layout.documents > 1 else 0)
        parts["source"] = batch.source[row, source_mask][None]
        if batch.source_types is not None:
            parts["source_types"] = batch.source_types[row, source_mask][None]
    horizon = None if batch.layout.horizon is None else batch.layout.horizon[inside][None]
    return Batch(layout=replace(Layout.whole(*parts["tokens"].shape), horizon=horizon), **parts)


def pack_rows(texts: Sequence[Batch]) -> tuple[Batch, list[Tensor]]:
    """Pack rows without a source into one row; return it with the mask of each, Bool[1 T]."""
    lengths = [text.tokens.shape[1] for text in texts]
    layout = Layout.packed([lengths], sum(lengths))
    if texts[0].layout.horizon is not None:
        layout = replace(layout, horizon=torch.cat([text.layout.sees_to for text in texts], dim=1))
    parts: dict[str, Any] = {
        name: torch.cat([getattr(text, name) for text in texts], dim=1)
        for name in ("tokens", "targets", "weights", "types")
        if getattr(texts[0], name) is not None
    }
    return Batch(layout=layout, **parts), [layout.segment == number for number in range(len(texts))]
