"""A forward pass over the next ids of every row of a cache."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache
from heddle.nn.layout import Layout
from heddle.nn.numeric import on_device


def feed(
    model: Transformer,
    cache: Cache,
    inputs: Sequence[list[int]],
    sources: Sequence[list[int]] = (),
    every: bool = False,
) -> Float[Tensor, "N V"]:
    """Run the next ids of every row of a cache. Return the logits after the last id of each row, or after `every` id, row by row.

    `sources` are the ids for the encoder, in the first call only.
    """
    tokens, counts = padded(inputs, model.device), [len(input) for input in inputs]
    if model.steps is not None and not (every or sources) and set(counts) == {1} and any(cache.lengths):
        return model.steps(tokens, cache)
    layout = cache.advance(counts, model.device)
    source, source_layout = None, None
    if sources:
        source, lengths = padded(sources, model.device), [len(ids) for ids in sources]
        if len(set(lengths)) > 1:
            source_layout = Layout.padded(lengths, max(lengths), device=model.device)
    hidden = model(tokens, layout, source, source_layout, cache=cache).hidden
    if every:
        return model.logits(hidden[layout.real])
    if len(set(counts)) == 1:
        return model.logits(hidden[:, -1])
    ends = on_device(counts, hidden.device) - 1
    return model.logits(hidden[torch.arange(len(counts), device=hidden.device), ends])


def padded(rows: Sequence[list[int]], device: torch.device) -> Int[Tensor, "B T"]:
    """Rows of ids, right-padded with 0."""
    width = max(map(len, rows))
    return on_device([row + [0] * (width - len(row)) for row in rows], device)
