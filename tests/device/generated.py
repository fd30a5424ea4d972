"""FlexAttention as torch.compile would generate it for a card, imitated: every score, by the functions that it is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.nn.kernels import fused, masked_softmax, table


@contextmanager
def generated() -> Iterator[list[tuple[object, ...]]]:
    """Inside the block the device's attention kernels are generated; the kind of each call is noted."""
    kinds = list[tuple[object, ...]]()

    def compiled(*kind: object) -> Any:
        kinds.append(kind)
        return attention

    with pytest.MonkeyPatch.context() as patch:
        for module in (fused, table):
            patch.setattr(module, "generates", lambda device: device.type == "cuda")
        patch.setattr(fused, "_compiled", compiled)
        yield kinds


def attention(q: Tensor, k: Tensor, v: Tensor, changed: Any, blocks: Any, scale: float, sinks: Tensor | None) -> Tensor:
    """What `heddle.nn.kernels.fused._attention` computes; torch multiplies heads of at least 16 channels."""
    assert min(q.shape[-1], v.shape[-1]) >= 16
    group = q.shape[1] // k.shape[1]
    keys, values = (each.repeat_interleave(group, dim=1).float() for each in (k, v))
    scores = q.float() @ keys.transpose(-2, -1) * scale
    place = [torch.arange(size, device=q.device) for size in scores.shape]
    row, head, query, key = (each.view([-1 if axis == at else 1 for axis in range(4)]) for at, each in enumerate(place))
    scores = scores if changed is None else changed(scores, row, head, query, key)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if blocks is not None:
        allowed = blocks.mask_mod(row, head, query, key).expand_as(scores)
    return (masked_softmax(scores, allowed, None, sinks) @ values).to(q.dtype)
