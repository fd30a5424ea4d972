"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

    torchrun --nproc-per-node 2 -m heddle train my.txt

Every rank reads the run, computes its share of each batch's rows, and makes the same update. Rank 0 leads: it alone makes the
run, holds its lock, scores, prints and saves.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heddle.errors import HeddleError
from heddle.parallel.board import Board, Lost

# What gloo and NCCL say of a process that does not answer, or has ended.
HANGS = re.compile("timed out|timeout", re.I)
ENDED = re.compile("connection (closed|reset|refused)|broken pipe|remote process exited|communicator was aborted", re.I)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: its number, from 0.
        count: how many there are.
        local: how many of them are on this machine.
        group: torch's group in which they train; None: the one that they joined.
        board: what they tell each other beside the collectives.
    """

    rank: int = 0
    count: int = 1
    local: int = 1
    group: "dist.ProcessGroup | None" = None
    board: Board | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside the block, others may take long, such as rank 0 while it evaluates or saves; after it, as long as in a step."""
        if self.board is None:
            yield
            return
        set_timeout(self.board.start)
        yield
        set_timeout(self.board.step)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, this process ends when another one stops, whatever it waits for."""
        if self.board is not None:
            self.board.ends.set()
        try:
            yield
        finally:
            if self.board is not None:
                self.board.ends.clear()

    def lost(self, error: Exception) -> Lost | None:
        """Who is gone, if an error says that another process has ended, or has not answered in time."""
        hangs = HANGS.search(str(error)) is not None
        if self.board is None or not (hangs or ENDED.search(str(error))):
            return None
        self.board.ends.clear()
        return self.board.missing(hangs)

    def compare(self, facts: Mapping[str, object]) -> None:
        """Refuse to train with a rank that has another version of heddle or torch than rank 0, or another fact.

        Raises:
            HeddleError: on every rank, with the first of them.
        """
        if self.board is not None:
            self.board.compare(facts)

    def note(self, name: str, text: str) -> None:
        """Leave a note for the processes that torchrun starts after these, if one of these ends."""
        if self.board is not None:
            self.board.note(name, text)

    def recall(self, name: str) -> str | None:
        """A note of the processes that torchrun started before these."""
        return None if self.board is None else self.board.recall(name)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's tensor."""
        if self.count == 1:
            return tensor
        summed = tensor.clone()
        dist.all_reduce(summed, group=self.group)
        return summed

    def total(self, number: float) -> float:
        """The sum of every rank's number, in fp64."""
        if self.count == 1:
            return number
        return float(self.sum(torch.tensor(number, dtype=torch.float64)))

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective, with a backward pass that leaves the mean of all ranks' gradients."""
        return objective if self.count == 1 else DistributedDataParallel(objective, process_group=self.group)

    def share(self, text: str) -> str:
        """The leader's text, on every rank; each waits for the leader."""
        return text if self.board is None else self.board.share(text)

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.count > 1:
            dist.barrier(self.group)

    def check_batch(self, batch: int, accumulate: int) -> None:
        """Refuse a batch that ranks and micro-batches do not divide.

        Raises:
            HeddleError: they do not.
        """
        if batch % (self.count * accumulate):
            parts = f"{self.count} processes" + (
                f" of accumulate = {accumulate} micro-batches" if accumulate > 1 else ""
            )
            raise HeddleError(
                f"batch = {batch} cannot be divided among {parts}: choose a multiple of {self.count * accumulate}"
            )


def set_timeout(seconds: float) -> None:
    """How long the collectives of every group of this process wait from now on."""
    for group in dist.distributed_c10d._world.pg_map:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
