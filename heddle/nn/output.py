"""The output of a layer, a stack or a model: hidden vectors and the routers' reports."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree


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


class Output(NamedTuple):
    """Hidden vectors, and one `Routing` per mixture of experts that produced them, in layer order."""

    hidden: Hidden
    routings: tuple[Routing, ...] = ()
