"""Matrices dealt among processes: each process gets some of them whole, and returns to every process its part of the results."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from heddle.parallel.regions import Region, cut


class Dealer:
    """Deals matrices of which each process of `group` holds a part.

    With replicas, each group deals only its share, and the replicas send each other the results.

    Args:
        shapes: (rows, columns) of the whole matrices.
        regions: for each matrix, the part that each process of the group holds; several may hold the same.
        group: the processes that hold one model between them.
        replicas: the processes that hold the same parts; None: there is one.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        regions: Sequence[Sequence[Region]],
        group: dist.ProcessGroup,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        self.shapes, self.regions, self.group, self.replicas = tuple(shapes), regions, group, replicas
        self.rank, self.size = group.rank(), group.size()
        self.replica, self.copies = (0, 1) if replicas is None else (replicas.rank(), replicas.size())
        # Matrices of one shape cost the same, so each process gets as many of them as any other, or one more.
        order = sorted(range(len(shapes)), key=lambda index: (self.shapes[index], index), reverse=True)
        turns = [divmod(turn, self.copies) for turn in range(len(order))]
        self.owner = {index: (replica, turn % self.size) for index, (turn, replica) in zip(order, turns, strict=True)}
        self.own = self._dealt_to(self.rank)

    def _dealt_to(self, rank: int) -> list[int]:
        """The matrices that a process of this group gets."""
        return [index for index in range(len(self.shapes)) if self.owner[index] == (self.replica, rank)]

    def _sends(self, rank: int, index: int) -> bool:
        """Whether a process is the first that holds its part of a matrix, which is not empty."""
        regions = self.regions[index]
        return regions.index(regions[rank]) == rank and all(stop > start for start, stop in regions[rank])

    def gather(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The whole matrices that are dealt to this process, from every process's parts of all matrices."""
        sent = [
            [parts[index] for index in self._dealt_to(rank) if self._sends(self.rank, index)]
            for rank in range(self.size)
        ]
        received = [
            [self.regions[index][rank] for index in self.own if self._sends(rank, index)] for rank in range(self.size)
        ]
        whole = {index: parts[0].new_empty(self.shapes[index]) for index in self.own}
        for rank, pieces in enumerate(self._exchange(sent, received, parts[0])):
            senders = (index for index in self.own if self._sends(rank, index))
            for index, piece in zip(senders, pieces, strict=True):
                cut(whole[index], self.regions[index][rank]).copy_(piece)
        return list(whole.values())

    def scatter(self, whole: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """This process's part of all matrices, from the whole ones that every process made of those dealt to it."""
        made = dict(zip(self.own, whole, strict=True))
        sent = [[cut(matrix, self.regions[index][rank]) for index, matrix in made.items()] for rank in range(self.size)]
        dealt = [self._dealt_to(rank) for rank in range(self.size)]
        received = [[self.regions[index][self.rank] for index in indices] for indices in dealt]
        parts = dict[int, Tensor]()
        for indices, pieces in zip(dealt, self._exchange(sent, received, like), strict=True):
            parts |= zip(indices, pieces, strict=True)
        for replica in range(self.copies if self.replicas is not None else 0):
            parts |= self._broadcast(replica, parts, like)
        return [parts[index] for index in range(len(self.shapes))]

    def _broadcast(self, replica: int, parts: dict[int, Tensor], like: Tensor) -> dict[int, Tensor]:
        """The parts of the matrices dealt to a replica, from its process with the same place as this one."""
        assert self.replicas is not None
        indices = [index for index in range(len(self.shapes)) if self.owner[index][0] == replica]
        regions = [self.regions[index][self.rank] for index in indices]
        if replica == self.replica:
            flat = _flat([parts[index] for index in indices], like)
        else:
            flat = like.new_empty(sum(map(_numel, regions)))
        dist.broadcast(flat, group=self.replicas, group_src=replica)
        return dict(zip(indices, _unflat(flat, regions), strict=True))

    def _exchange(self, sent: list[list[Tensor]], received: list[list[Region]], like: Tensor) -> list[list[Tensor]]:
        """Send a list of matrices to each process of the group; return the list from each, with the shapes of regions."""
        if self.size == 1:
            return sent
        outputs = [sum(map(_numel, regions)) for regions in received]
        inputs = [sum(each.numel() for each in matrices) for matrices in sent]
        out, flat = like.new_empty(sum(outputs)), _flat([each for matrices in sent for each in matrices], like)
        dist.all_to_all_single(out, flat, outputs, inputs, group=self.group)
        return [_unflat(piece, regions) for piece, regions in zip(out.split(outputs), received, strict=True)]


def _flat(matrices: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([each.reshape(-1).to(like.dtype) for each in matrices]) if matrices else like.new_empty(0)


def _unflat(flat: Tensor, regions: Sequence[Region]) -> list[Tensor]:
    pieces = flat.split([_numel(each) for each in regions])
    return [piece.view(_shape(each)) for piece, each in zip(pieces, regions, strict=True)]


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)


def _numel(region: Region) -> int:
    rows, columns = _shape(region)
    return rows * columns
