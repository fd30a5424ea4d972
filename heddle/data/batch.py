"""Batches of inputs and targets, and the function that makes next-token batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor
from torch.utils import _pytree

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.device import find_device
from heddle.nn.layout import Layout
from heddle.nn.numeric import moved

IGNORED = -100
"""The target of a position without a target; its weight is 0."""


@displayed()
@dataclass(frozen=True)
class Batch:
    """Rows of tokens, their layout, the targets, and the weight of each target.

    Attributes:
        tokens: Int[B T], ids.
        layout: positions and segments of the tokens.
        targets: Int[B ...], the id or class to predict, or `IGNORED`; [B T] if tokens are scored, [B] if sequences are. Or
            Float[B], the number to predict; or Float[B C], 1 or 0 for each of several classes.
        weights: Float[B ...], fp32: the weight of each target in the loss; 0 for `IGNORED`. Several classes are one target.
        source: Int[B S], ids for the encoder of an encoder-decoder, or None.
        source_layout: positions and segments of the source.
        types: Int[B T], token types, or None.
        source_types: Int[B S], token types of the source, or None.
        continued: Bool[B], whether the span of a row's last target goes on beyond the context, or None.
        texts: Int[B M], a number for each text of a row, the same for equal texts, or None.
        counts: how many weights of each row are not 0, for a batch that was moved from the CPU; None for any other.

    Raises:
        HeddleError: an `IGNORED` target has a weight other than 0.
    """

    tokens: Int[Tensor, "B T"]
    layout: Layout
    targets: Shaped[Tensor, "B *places"]
    weights: Float[Tensor, "B *scored"]
    source: Int[Tensor, "B S"] | None = None
    source_layout: Layout | None = None
    types: Int[Tensor, "B T"] | None = None
    source_types: Int[Tensor, "B S"] | None = None
    continued: Bool[Tensor, " B"] | None = None
    texts: Int[Tensor, "B M"] | None = None
    counts: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        readable = (
            type(self.targets) is Tensor and self.targets.device.type == "cpu" and not torch.compiler.is_compiling()
        )
        if readable and not self.targets.is_floating_point() and self.weights[self.targets == IGNORED].any():
            raise HeddleError(f"targets of {IGNORED} are ignored and need weight 0; some have another weight")

    def parts(self) -> dict[str, Any]:
        """The tensors and layouts by name, without None."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "counts"}

    @checked()
    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device.

        Raises:
            HeddleError: there is no such device.
        """
        target, counts = find_device(device, meta=True), self.counts
        if self.weights.device.type == "cpu" != target.type:  # there, reading them would wait for the device
            counts = tuple(self.weights.unsqueeze(-1).flatten(1).count_nonzero(1).tolist())
        parts = self.parts().items()
        return counted_batch(
            {name: part.to(target) if isinstance(part, Layout) else moved(part, target) for name, part in parts}, counts
        )

    @checked()
    def split(self, parts: int) -> list["Batch"]:
        """``parts`` micro-batches of B / parts consecutive rows each.

        Raises:
            HeddleError: the rows do not divide evenly.
        """
        rows = self.tokens.shape[0]
        if parts < 1 or rows % parts:
            raise HeddleError(f"a batch of {rows} rows cannot be split into {parts} equal micro-batches")
        each = rows // parts
        columns = {name: part.split(each) for name, part in self.parts().items()}
        batches = list[Batch]()
        for number in range(parts):
            counts = self.counts and self.counts[number * each : (number + 1) * each]
            batches.append(counted_batch({name: column[number] for name, column in columns.items()}, counts))
        return batches


def counted_batch(parts: Mapping[str, Any], counts: tuple[int, ...] | None) -> Batch:
    """A batch from its parts, of which it is known how many weights of each row are not 0."""
    made = Batch(**parts)
    object.__setattr__(made, "counts", counts)
    return made


_pytree.register_pytree_node(
    Batch,
    lambda batch: (list(batch.parts().values()), tuple(batch.parts())),
    lambda children, names: Batch(**dict(zip(names, children, strict=True))),
)


@checked()
def next_token_batch(rows: Integer[np.ndarray, "B N"]) -> Batch:
    """A batch in which every token predicts the next; N = T + 1 ids per row give T inputs and T targets (L0-89).

    Rows that begin with a start token also predict the text's first token (L2-56, D-24).

    Raises:
        HeddleError: rows have fewer than two ids, hence no target.
    """
    if rows.shape[1] < 2:
        raise HeddleError(f"rows of {rows.shape[1]} token(s) have no target; they need at least 2")
    ids = torch.from_numpy(rows.astype(np.int64))
    # Copies: views would carry the memory of the whole buffer through every move between devices.
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(tokens, Layout.whole(*tokens.shape), targets, torch.ones(tokens.shape))
