"""The output of a layer, a stack or a model: hidden vectors and the routers' reports."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree

from heddle.display import displayed
from heddle.nn.layout import PADDING, Form, Layout
from heddle.nn.numeric import on_device


@displayed()
@dataclass(frozen=True)
class Routing:
    """The report of a mixture of experts, returned with its output and never stored on a module.

    Attributes:
        load: Int[E], number of (token, expert) pairs of each expert, padding excluded; sums to n · K (L2-69).
        terms: a scalar, the weighted balance and z losses summed over documents, so that any split of a batch adds up.
    """

    load: Int[Tensor, " E"]
    terms: Float[Tensor, ""]


_pytree.register_pytree_node(
    Routing,
    lambda routing: ([routing.load, routing.terms], None),
    lambda leaves, _: Routing(**dict(zip(("load", "terms"), leaves, strict=True))),
)


Hidden = Float[Tensor, "B T D"]
"""Hidden vectors: one of width D for each token."""


@displayed(".hidden")
class Output(NamedTuple):
    """Hidden vectors, and one `Routing` per mixture of experts that produced them, in layer order."""

    hidden: Hidden
    routings: tuple[Routing, ...] = ()


@dataclass(frozen=True)
class EncoderOutput:
    """An encoder's output, for a decoder's cross-attention.

    Attributes:
        hidden: Float[B S D].
        layout: layout of the source's tokens; padding is masked.
    """

    hidden: Float[Tensor, "B S D"]
    layout: Layout

    def select(self, rows: Sequence[int]) -> "EncoderOutput":
        """These rows; the same tensors if they are all rows in order."""
        if list(rows) == list(range(self.layout.rows)):
            return self
        index = on_device(list(rows), self.hidden.device, torch.long)
        position, segment = (tensor.index_select(0, index) for tensor in (self.layout.position, self.layout.segment))
        return EncoderOutput(
            self.hidden.index_select(0, index), replace(self.layout, position=position, segment=segment)
        )

    def join(self, other: "EncoderOutput") -> "EncoderOutput":
        """The rows of both, in order; the narrower are padded."""
        first, second = self.layout, other.layout
        width = max(first.width, second.width)

        def widened(output: EncoderOutput) -> tuple[Tensor, Tensor, Tensor]:
            padding = (0, width - output.layout.width)
            segment = F.pad(output.layout.segment, padding, value=PADDING)
            return F.pad(output.hidden, (0, 0, *padding)), F.pad(output.layout.position, padding), segment

        hidden, position, segment = (torch.cat(pair) for pair in zip(widened(self), widened(other), strict=True))
        forms = {first.form, second.form}
        all_whole = forms == {"whole"} and first.width == second.width
        form: Form = "whole" if all_whole else "padded" if forms <= {"whole", "padded"} else "packed"
        return EncoderOutput(hidden, Layout(position, segment, form, max(first.documents, second.documents)))
