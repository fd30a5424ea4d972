"""Matrices dealt among processes: each process gets some of them whole, and returns to every process its rows of the results."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Dealer:
    """Deals matrices that are cut by rows among the processes of `group`, as `torch.chunk` cuts, into that many parts.

    With replicas, each group deals only its share, and the replicas send each other the results.

    Args:
        shapes: (rows, columns) of the whole matrices.
        group: the processes that hold one model between them.
        replicas: the processes that hold the same parts; None: there is one.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, int]], group: dist.ProcessGroup, replicas: dist.ProcessGroup | None = None
    ) -> None:
        self.shapes, self.group, self.replicas = tuple(shapes), group, replicas
        self.rank, self.size = group.rank(), group.size()
        self.replica, self.copies = (0, 1) if replicas is None else (replicas.rank(), replicas.size())
        # Matrices of one shape cost the same, so each process gets as many of them as any other, or one more.
        order = sorted(range(len(shapes)), key=lambda index: (self.shapes[index], index), reverse=True)
        turns = [divmod(turn, self.copies) for turn in range(len(order))]
        self.owner = {index: (replica, turn % self.size) for index, (turn, replica) in zip(order, turns, strict=True)}
        self.own = self._of(self.replica, self.rank)

    def _of(self, replica: int, rank: int) -> list[int]:
        return [index for index in range(len(self.shapes)) if self.owner[index] == (replica, rank)]

    def _rows(self, index: int) -> list[int]:
        """How many rows of a matrix each process of the group holds."""
        rows = self.shapes[index][0]
        step = -(-rows // self.size)
        return [max(0, min(step, rows - step * rank)) for rank in range(self.size)]

    def gather(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The whole matrices that are dealt to this process, from every process's rows of all matrices."""
        owners = [self._of(self.replica, rank) for rank in range(self.size)]
        sent = [[parts[index] for index in indices] for indices in owners]
        received = [
            [(self._rows(index)[rank], self.shapes[index][1]) for index in self.own] for rank in range(self.size)
        ]
        pieces = self._exchange(sent, received, parts[0])
        return [torch.cat(rows) for rows in zip(*pieces, strict=True)] if self.own else []

    def scatter(self, whole: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """This process's rows of all matrices, from the whole ones that every process made of those dealt to it."""
        cuts = [matrix.split(self._rows(index)) for index, matrix in zip(self.own, whole, strict=True)]
        sent = [[cut[rank] for cut in cuts] for rank in range(self.size)]
        owners = [self._of(self.replica, rank) for rank in range(self.size)]
        received = [[(self._rows(index)[self.rank], self.shapes[index][1]) for index in indices] for indices in owners]
        pieces = self._exchange(sent, received, like)
        parts = {
            index: part
            for indices, each in zip(owners, pieces, strict=True)
            for index, part in zip(indices, each, strict=True)
        }
        for replica in range(self.copies if self.replicas is not None else 0):
            parts |= self._broadcast(replica, parts, like)
        return [parts[index] for index in range(len(self.shapes))]

    def _broadcast(self, replica: int, parts: dict[int, Tensor], like: Tensor) -> dict[int, Tensor]:
        """The rows that the process of this replica with the same place has."""
        assert self.replicas is not None
        indices = [index for index in range(len(self.shapes)) if self.owner[index][0] == replica]
        shapes = [(self._rows(index)[self.rank], self.shapes[index][1]) for index in indices]
        if replica == self.replica:
            flat = _flat([parts[index] for index in indices], like)
        else:
            flat = like.new_empty(sum(rows * columns for rows, columns in shapes))
        dist.broadcast(flat, group=self.replicas, group_src=replica)
        return dict(zip(indices, _cut(flat, shapes), strict=True))

    def _exchange(
        self, sent: list[list[Tensor]], received: list[list[tuple[int, int]]], like: Tensor
    ) -> list[list[Tensor]]:
        """Send a list of matrices to each process of the group; return the list from each, of the given shapes."""
        if self.size == 1:
            return sent
        outputs = [sum(rows * columns for rows, columns in shapes) for shapes in received]
        inputs = [sum(each.numel() for each in matrices) for matrices in sent]
        out, flat = like.new_empty(sum(outputs)), _flat([each for matrices in sent for each in matrices], like)
        dist.all_to_all_single(out, flat, outputs, inputs, group=self.group)
        return [_cut(piece, shapes) for piece, shapes in zip(out.split(outputs), received, strict=True)]


def _flat(matrices: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([each.reshape(-1).to(like.dtype) for each in matrices]) if matrices else like.new_empty(0)


def _cut(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    pieces = flat.split([rows * columns for rows, columns in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
