"""What a layer, a stack and a model give: hidden vectors, and beside them what routers did."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True)
class Routing:
    """What a mixture of experts reports beside its output, as values that no module keeps.

    Attributes:
        load: Int[E], how many (token, expert) pairs of real tokens went to each expert; they sum to n · K (L2-69).
        terms: a number, the weighted balance and z losses, summed over documents, so that they add up over any split.
    """

    load: Int[Tensor, " E"]
    terms: Float[Tensor, ""]


_pytree.register_pytree_node(
    Routing,
    lambda routing: ([routing.load, routing.terms], None),
    lambda leaves, _: Routing(**dict(zip(("load", "terms"), leaves, strict=True))),
)


class Output(NamedTuple):
    """Hidden vectors [B T D], and one `Routing` for each mixture of experts that they went through, in order."""

    hidden: Tensor
    routings: tuple[Routing, ...] = ()
