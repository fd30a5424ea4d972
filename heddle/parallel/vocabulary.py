"""Tables divided by rows: each process has the vectors and the scores of its part of the vocabulary (Shoeybi et al. 2019, 3).

A vector is looked up where its row is. A loss needs two sums for each target: the largest score, and the sum of exponentials.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn import functional as F

from heddle.errors import HeddleError
from heddle.model.head import LanguageHead, Scores
from heddle.model.rows import Rows
from heddle.model.transformer import Transformer
from heddle.nn.embedding import Embedding


class OwnRows(Rows):
    """This process's rows of a table that the processes of a mesh divide.

    Args:
        mesh: one axis.
        rows: of the whole table.
        vocab_size: how many of them are not padding.
    """

    def __init__(self, mesh: DeviceMesh, rows: int, vocab_size: int) -> None:
        self.mesh, self.whole = mesh, rows
        each = -(-rows // mesh.size())  # as torch cuts: the last process may have fewer
        self.start = each * mesh.get_local_rank()
        self.size = max(0, min(each, rows - self.start))
        self.real = max(0, min(self.size, vocab_size - self.start))

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        places = ids - self.start
        here = (places >= 0) & (places < self.size)
        return places.masked_fill(~here, 0), here

    def sum(self, x: Tensor) -> Tensor:
        summed: Tensor = all_reduce(x, "sum", self.mesh)
        return summed

    def largest(self, x: Tensor) -> Tensor:
        largest: Tensor = all_reduce(x, "max", self.mesh)
        return largest

    def join(self, x: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows V"]:
        shape = torch.Size((*x.shape[:-1], self.whole))
        joint = self._joint(x, Shard(x.dim() - 1), shape).redistribute(placements=[Replicate()])
        return joint.to_local(grad_placements=[Replicate()])

    def joined(self, x: Tensor) -> Tensor:
        """The sum of what the processes have, for all of them; all compute the same from here on."""
        joint = self._joint(x, Partial(), x.shape).redistribute(placements=[Replicate()])
        return joint.to_local(grad_placements=[Replicate()])

    def entered(self, x: Tensor) -> Tensor:
        """What all processes have, from where each computes its own part: their gradients are summed."""
        return self._joint(x, Replicate(), x.shape).to_local(grad_placements=[Partial()])

    def part(self, table: Tensor) -> DTensor:
        """A whole table, or a bias with a number for each row, divided."""
        own = table.detach()[self.start : self.start + self.size].clone()
        return self._joint(own, Shard(0), table.shape)

    def _joint(self, x: Tensor, placement: Placement, shape: torch.Size) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(x, self.mesh, [placement], run_check=False, shape=shape, stride=stride)


class DividedEmbedding(Embedding):
    """A table of which this process has some rows."""

    rows: OwnRows

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        places, here = self.rows.places(ids)
        return self.rows.joined(F.embedding(places, _local(self.weight)) * here[..., None])


class DividedHead(LanguageHead):
    """A language head that scores this process's rows of the table."""

    rows: OwnRows

    def features(self, hidden: Float[Tensor, "*rows D"], layout: Any = None) -> Float[Tensor, "*rows E"]:
        """The hidden vectors, transformed and scaled if so configured."""
        return self.rows.entered(super().features(hidden, layout))

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """Scores of this process's rows."""
        table = table if self.weight is None else self.weight
        bias = None if self.bias is None else _local(self.bias)
        return Scores(_local(table), self.vocab_size, bias, self.cap, self.by_onednn, self.rows)


def check_tables(model: Transformer, processes: int) -> None:
    """Check that this many processes can divide the tables of a model.

    Raises:
        HeddleError: one of them has too few rows.
    """
    for name, _, rows, _ in _tables(model):
        if -(-rows // processes) * (processes - 1) >= rows:
            raise HeddleError(f"parallel: tensor = {processes} cannot divide {name}: it has {rows} rows only")


def divide_tables(model: Transformer, mesh: DeviceMesh) -> dict[str, OwnRows]:
    """Divide a model's tables of tokens, and the scores of a language head, by rows along a mesh's axis, in place.

    Returns:
        This process's rows of each divided parameter.
    """
    divided = dict[str, OwnRows]()
    for name, module, rows, vocab_size in _tables(model):
        own = OwnRows(mesh, rows, vocab_size)
        for leaf in ("weight", "bias"):
            parameter: nn.Parameter | None = getattr(module, leaf, None)
            if parameter is not None:
                setattr(module, leaf, nn.Parameter(own.part(parameter), requires_grad=parameter.requires_grad))
                divided[f"{name}.{leaf}"] = own
        module.__class__, module.rows = DividedHead if name == "head" else DividedEmbedding, own
    return divided


def _tables(model: Transformer) -> Iterator[tuple[str, Any, int, int]]:
    """Each module with a row for each id: its name, its rows, and how many of them are not padding."""
    config = model.config
    yield "embedding", model.embedding, config.table_rows(), config.vocab_size
    if model.source_embedding is not None:
        yield (
            "source_embedding",
            model.source_embedding,
            config.source_rows(),
            config.source_vocab_size or config.vocab_size,
        )
    if isinstance(model.head, LanguageHead):
        yield "head", model.head, config.table_rows(), config.vocab_size


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
