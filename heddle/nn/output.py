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


@displayed()
@dataclass(frozen=True)
class Routing:
    """What a mixture of experts reports with its output. It is returned, never stored on a module.

    Attributes:
        load: Int[E], how many (token, expert) pairs went to each expert, padding excluded; sums to n · K (L2-69).
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
        layout: layout of the source's tokens; padding is seen by nothing.
    """

    hidden: Float[Tensor, "B S D"]
    layout: Layout

    def select(self, rows: Sequence[int]) -> "EncoderOutput":
        """These rows; the same tensors if they are all rows in order."""
        if list(rows) == list(range(self.layout.rows)):
            return self
        index = torch.tensor(list(rows), dtype=torch.long, device=self.hidden.device)
        position, segment = (each.index_select(0, index) for each in (self.layout.position, self.layout.segment))
        return EncoderOutput(
            self.hidden.index_select(0, index), replace(self.layout, position=position, segment=segment)
        )

    def join(self, other: "EncoderOutput") -> "EncoderOutput":
        """The rows of both, in order; the narrower are filled with padding."""
        one, two = self.layout, other.layout
        width = max(one.width, two.width)

        def wide(each: EncoderOutput) -> tuple[Tensor, Tensor, Tensor]:
            more = (0, width - each.layout.width)
            segment = F.pad(each.layout.segment, more, value=PADDING)
            return F.pad(each.hidden, (0, 0, *more)), F.pad(each.layout.position, more), segment

        hidden, position, segment = (torch.cat(pair) for pair in zip(wide(self), wide(other), strict=True))
        forms = {one.form, two.form}
        whole = forms == {"whole"} and one.width == two.width
        form: Form = "whole" if whole else "padded" if forms <= {"whole", "padded"} else "packed"
        return EncoderOutput(hidden, Layout(position, segment, form, max(one.documents, two.documents)))
