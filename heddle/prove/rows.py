"""Rows of a batch, rearranged: fewer, shorter or padded ones, documents taken apart and packed into one row."""

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

FILL = 0  # the id of padding: what it is must not matter
COLUMNS = (
    "tokens",
    "layout",
    "types",
)  # what is as wide as the tokens; targets and weights are so if tokens are scored


def by_token(batch: Batch) -> bool:
    """Whether each token has a target, rather than each row."""
    return batch.weights.shape == batch.tokens.shape


def narrowed(batch: Batch, width: int) -> Batch:
    """The first `width` tokens of each row, with their targets."""
    names = (*COLUMNS, *(("targets", "weights") if by_token(batch) else ()))
    return changed(batch, names, lambda part: part[:, :width])


def widened(batch: Batch, by: int, side: Literal["right", "left"]) -> Batch:
    """The same rows with `by` tokens of padding after their end or before their start; so is the source, if there is one."""
    parts = batch.parts()
    both = (by, 0) if side == "left" else (0, by)
    fills: dict[str, float] = {"tokens": FILL, "source": FILL, "types": 0, "source_types": 0}
    if by_token(batch):
        fills |= {"targets": IGNORED, "weights": 0.0}
    for name in fills.keys() & parts.keys():
        parts[name] = F.pad(parts[name], both, value=fills[name])
    for name, tokens in (("layout", batch.tokens), ("source_layout", batch.source)):
        if tokens is not None:
            parts[name] = _padded(parts.get(name) or Layout.whole(*tokens.shape), by, side)
    return Batch(**parts)


def _padded(layout: Layout, by: int, side: str) -> Layout:
    width = layout.width + by
    longest = layout.width if layout.longest is None else layout.longest
    both = (0, by) if side == "right" else (by, 0)
    wider = layout.map_tensors(lambda tensor: F.pad(tensor, both))
    wider = replace(wider, segment=F.pad(layout.segment, both, value=PADDING), form="packed", longest=longest)
    if side == "right":
        after = torch.arange(layout.width, width).expand(layout.rows, by)
        form: Any = "padded" if layout.form in ("whole", "padded") else "packed"
        wider = replace(wider, position=torch.cat((layout.position, after), dim=1), form=form)
    return wider


def changed(batch: Batch, names: Sequence[str], change: Any) -> Batch:
    """The batch with some of its parts changed; of a layout, its tensors."""
    parts = batch.parts()
    for name in set(names) & parts.keys():
        part = parts[name]
        parts[name] = part.map_tensors(change) if isinstance(part, Layout) else change(part)
    return Batch(**parts)


def reordered(batch: Batch, rows: Int[Tensor, " N"]) -> Batch:
    """These of its rows, in this order."""
    return changed(batch, tuple(batch.parts()), lambda part: part[rows])


def targeted(batch: Batch, chosen: Tensor) -> Batch:
    """The batch with only some of its targets, Bool like `targets`; the others have no weight."""
    weights = torch.where(chosen, batch.weights, torch.zeros_like(batch.weights))
    return replace(batch, weights=weights)


def only(batch: Batch, inside: Tensor) -> Batch:
    """The batch with padding in place of all but some of its tokens, Bool[B T]."""
    layout = replace(batch.layout, segment=torch.where(inside, batch.layout.segment, PADDING), form="packed")
    return replace(targeted(batch, inside), layout=layout)


def content(batches: Sequence[Batch]) -> Trace:
    """Everything that batches contain, row after row without padding, which depends on the rows beside."""
    kept: dict[str, list[Tensor]] = {}
    for batch in batches:
        parts = batch.parts()
        real = batch.layout.real
        source_real = None if batch.source_layout is None else batch.source_layout.real
        for name, part in parts.items():
            there = source_real if name.startswith("source") else real
            tensors = {name: part}
            if isinstance(part, Layout):
                names = ("positions", "segments", "prefixes")
                tensors = {f"{kind} of {name}": tensor for kind, tensor in zip(names, part.tensors(), strict=False)}
            for place, tensor in tensors.items():
                same = there is not None and tensor.shape == there.shape
                kept.setdefault(place, []).append(tensor[there].flatten() if same else tensor.flatten())
        kept.setdefault("rows", []).append(real.sum(1))
    return {name: torch.cat(found) for name, found in kept.items()}


@dataclass(frozen=True)
class Document:
    """One segment of a row: which tokens of the batch it has, and it alone, as a batch of one row.

    Attributes:
        inside: Bool[B T], its tokens in the batch that it comes from.
        alone: its tokens, targets and, if the row has one, its part of the source.
    """

    inside: Tensor
    alone: Batch


def documents(batch: Batch, most: int) -> list[Document]:
    """The first documents of a batch whose tokens have targets."""
    found: list[Document] = []
    for row in range(batch.layout.rows):
        for number in range(batch.layout.documents):
            inside = (torch.arange(batch.layout.rows)[:, None] == row) & (batch.layout.segment == number)
            if inside.any() and batch.weights[inside].any() and len(found) < most:
                found.append(Document(inside, _alone(batch, row, number, inside)))
    return found


def _alone(batch: Batch, row: int, number: int, inside: Tensor) -> Batch:
    parts = {name: getattr(batch, name)[inside][None] for name in ("tokens", "targets", "weights")}
    if batch.types is not None:
        parts["types"] = batch.types[inside][None]
    if batch.source is not None:
        there = torch.ones_like(batch.source[row], dtype=torch.bool)
        if batch.source_layout is not None:
            there = batch.source_layout.segment[row] == (number if batch.layout.documents > 1 else 0)
        parts["source"] = batch.source[row, there][None]
        if batch.source_types is not None:
            parts["source_types"] = batch.source_types[row, there][None]
    horizon = None if batch.layout.horizon is None else batch.layout.horizon[inside][None]
    return Batch(layout=replace(Layout.whole(*parts["tokens"].shape), horizon=horizon), **parts)


def packed(texts: Sequence[Batch]) -> tuple[Batch, list[Tensor]]:
    """Rows without a source side by side in one row, and where each of them is in it, Bool[1 T]."""
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
