"""Layouts: the position of each token of a batch, and the sequence that it belongs to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils import _pytree

from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.nn.numeric import moved

Form = Literal["whole", "padded", "packed", "uniform", "newest", "ragged"]
EVEN: tuple[Form, ...] = ("whole", "uniform", "newest")  # no padding, and all rows have the same positions
PADDING = -1


@displayed(".position, .segment")
@dataclass(frozen=True)
class Layout:
    """Positions and segments of a batch of tokens, and their form, which is known on the host.

    Tokens see only tokens of their own segment; segment -1 is padding, which neither sees tokens nor is seen. The
    form lets code choose fast paths without reading tensors:

    - `whole`: every row is one whole sequence, positions 0..T-1;
    - `padded`: like `whole`, with padding after each row's end;
    - `packed`: anything else that needs a full mask, such as several documents in a row or padding in front;
    - `uniform`: the next tokens of cached rows of equal length;
    - `newest`: like `uniform`, with one token in each row and no key after it, so that it sees all keys;
    - `ragged`: the next tokens of cached rows of different lengths, or different numbers of them.

    Attributes:
        position: Int[B T], the position of each token in its sequence, from 0.
        segment: Int[B T], the sequence within its row that a token belongs to; -1 is padding.
        form: see above.
        documents: the largest number of segments in any row, known on the host: segments are 0..documents-1, and -1.
        longest: tokens in the longest segment, if packing recorded it; None: at most the width.
        unpadded: whether the host knows that every token of a `ragged` layout is real.
        horizon: Int[B T], the last position that each token of a decoder sees; None: its own. A token of a prefix sees to the
            prefix's end, see `prefixed`.
    """

    position: Int[Tensor, "B T"]
    segment: Int[Tensor, "B T"]
    form: Form
    documents: int = 1
    longest: int | None = None
    unpadded: bool = False
    horizon: Int[Tensor, "B T"] | None = None

    @classmethod
    def whole(cls, rows: int, length: int, device: torch.device | str | None = None) -> "Layout":
        """Every row is one whole sequence of `length` tokens."""
        position = torch.arange(length, device=device).expand(rows, length)
        return cls(position, torch.zeros_like(position), "whole")

    @classmethod
    def padded(
        cls,
        lengths: Sequence[int],
        width: int,
        side: Literal["right", "left"] = "right",
        device: torch.device | str | None = None,
    ) -> "Layout":
        """Rows of different lengths, padded to `width` tokens after their end or, with side = "left", before their start.

        Raises:
            HeddleError: a row is longer than `width`.
        """
        _check_fits([[length] for length in lengths], width)
        length = torch.tensor(list(lengths), device=device)[:, None]
        slot = torch.arange(width, device=device).expand(len(lengths), width)
        position = slot if side == "right" else slot - (width - length)
        inside = (position >= 0) & (position < length)
        segment = torch.where(inside, 0, PADDING)
        return cls(position.clamp(min=0), segment, "padded" if side == "right" else "packed")

    @classmethod
    def packed(cls, lengths: Sequence[Sequence[int]], width: int, device: torch.device | str | None = None) -> "Layout":
        """Several documents in each row, of lengths `lengths[b]` in row b; the rest of the row is padding.

        Raises:
            HeddleError: a row's documents add up to more than `width`.
        """
        _check_fits(lengths, width)
        position = torch.zeros(len(lengths), width, dtype=torch.long)
        segment = torch.full((len(lengths), width), PADDING)
        # All documents at once: a step on a GPU may read thousands.
        length = torch.tensor([length for documents in lengths for length in documents], dtype=torch.long)
        number = torch.tensor([number for documents in lengths for number in range(len(documents))], dtype=torch.long)
        filled = torch.tensor([sum(documents) for documents in lengths], dtype=torch.long)
        real = torch.arange(width) < filled[:, None]
        position[real] = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
        segment[real] = number.repeat_interleave(length)
        documents_per_row = max((len(documents) for documents in lengths), default=1)
        longest = max((length for documents in lengths for length in documents), default=0)
        return cls(position.to(device), segment.to(device), "packed", max(documents_per_row, 1), longest)

    def prefixed(self, lengths: Int[Tensor, "B N"]) -> "Layout":
        """A layout in which the first `lengths[b, n]` tokens of segment n of row b see each other in both directions.

        For a decoder with `prefix = true` (Raffel et al. 2020, 3.2.1; Dong et al. 2019, 3.2). A length of 0 or 1 has no effect.
        """
        ends = lengths.to(self.position.device).gather(1, self.segment.clamp(min=0)) - 1
        return replace(self, horizon=torch.maximum(self.position, ends))

    def together(self, rows: int) -> "Layout":
        """Join neighbouring rows, so that there are `rows` rows; for queries of the same keys."""
        return self if rows == self.rows else self.map_tensors(lambda tensor: tensor.reshape(rows, -1))

    @property
    def sees_to(self) -> Int[Tensor, "B T"]:
        """The last position that each token of a decoder sees."""
        return self.position if self.horizon is None else self.horizon

    @property
    def real(self) -> Bool[Tensor, "B T"]:
        """Which tokens are not padding."""
        return self.segment != PADDING

    @property
    def rows(self) -> int:
        """B."""
        return self.position.shape[0]

    @property
    def width(self) -> int:
        """T, padding included."""
        return self.position.shape[1]

    def to(self, device: torch.device | str) -> "Layout":
        """The same layout on another device."""
        return self.map_tensors(lambda tensor: moved(tensor, device))

    def split(self, rows: int) -> list["Layout"]:
        """Consecutive pieces of `rows` rows each."""
        return [self._of(pieces) for pieces in zip(*(tensor.split(rows) for tensor in self.tensors()), strict=True)]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Layout":
        """The same layout with `change` applied to each of its tensors, [B T] each."""
        return self._of([change(tensor) for tensor in self.tensors()])

    def tensors(self) -> list[Tensor]:
        """Its tensors, [B T] each: positions, segments and, if there are prefixes, horizons."""
        return [self.position, self.segment, *(() if self.horizon is None else (self.horizon,))]

    def check_prefix(self, supported: bool) -> None:
        """Raise a HeddleError if there are prefixes and the stack does not support them."""
        if self.horizon is not None and not supported:
            raise HeddleError(
                "this layout has prefixes, but the model is causal: set decoder.prefix = true, or leave them out"
            )

    def _of(self, tensors: Sequence[Tensor]) -> "Layout":
        position, segment, *horizon = tensors
        return replace(self, position=position, segment=segment, horizon=horizon[0] if horizon else None)


def _check_fits(lengths: Sequence[Sequence[int]], width: int) -> None:
    for row, documents in enumerate(lengths):
        if min(documents, default=0) < 0 or sum(documents) > width:
            raise HeddleError(
                f"row {row} has {' + '.join(map(str, documents))} tokens, but the layout's width is {width}"
            )


# torch.compile and pipeline parallelism flatten and split layouts as trees.
_pytree.register_pytree_node(
    Layout,
    lambda layout: (layout.tensors(), (layout.form, layout.documents, layout.longest, layout.unpadded)),
    lambda tensors, constants: Layout(*[*tensors][:2], *constants, *[*tensors][2:]),
)
