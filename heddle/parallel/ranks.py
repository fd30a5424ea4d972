"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

    torchrun --nproc-per-node 2 -m heddle train my.txt

Every rank reads the run, computes its share of each batch's rows, and makes the same update. Rank 0 leads: it alone makes the
run, holds its lock, scores, prints and saves.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heddle.errors import HeddleError
from heddle.parallel.board import Board, Lost

# What gloo and NCCL say of a process that does not answer, or has ended.
HANGS = re.compile("timed out|timeout", re.I)
SAVES = "checkpoint"  # the group of processes that save in the background
ENDED = re.compile("connection (closed|reset|refused)|broken pipe|remote process exited|communicator was aborted", re.I)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: its number, from 0.
        count: how many there are.
        local: how many of them are on this machine.
        group: torch's group in which they train; None: the one that they joined.
        of_rows: how many neighbours in the order of ranks share the same rows.
        of_tokens: how many of these compute the same tokens, each for a part of the model.
        stages: how many equal groups of ranks, one after another, read the same rows, each for some of the layers.
        board: what they tell each other beside the collectives.
    """

    rank: int = 0
    count: int = 1
    local: int = 1
    group: "dist.ProcessGroup | None" = None
    of_rows: int = 1
    of_tokens: int = 1
    stages: int = 1
    board: Board | None = None

    def on(self, sizes: Mapping[str, int]) -> "Ranks":
        """The same on a mesh of these sizes."""
        of_rows = sizes["context"] * sizes["tensor"]
        return replace(self, of_rows=of_rows, of_tokens=sizes["tensor"], stages=sizes["pipeline"])

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Its number among those that read different rows."""
        return self.rank % (self.count // self.stages) // self.of_rows

    @property
    def data_count(self) -> int:
        """How many read different rows."""
        return len(self.readers)

    @property
    def readers(self) -> range:
        """The first rank of all that read the same rows, for each share of the rows."""
        return range(0, self.count // self.stages, self.of_rows)

    @property
    def token_count(self) -> int:
        """How many compute different tokens."""
        return self.count // (self.stages * self.of_tokens)

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
        """The sum of a tensor over all tokens: of the ranks that compute the same ones, one counts."""
        if self.count == 1:
            return tensor
        counts = self.rank % self.of_tokens == 0 and self.rank < self.count // self.stages
        summed = tensor.clone() if counts else torch.zeros_like(tensor)
        dist.all_reduce(summed, group=self.group)
        return summed

    def gather(self, text: str) -> list[str]:
        """Every rank's text, on every rank."""
        if self.count == 1:
            return [text]
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group=self.group)
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(texts, nn.functional.pad(data, (0, longest - len(data))), group=self.group)
        return [bytes(each[: int(length)].tolist()).decode() for each, length in zip(texts, lengths, strict=True)]

    def share(self, text: str) -> str:
        """The leader's text, on every rank; each waits for the leader."""
        return text if self.board is None else self.board.share(text)

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.count > 1:
            dist.barrier(self.group)

    def check_batch(self, batch: int, accumulate: int) -> None:
        """Refuse a batch whose rows ranks and micro-batches do not divide.

        Raises:
            HeddleError: they do not.
        """
        if batch % (self.data_count * accumulate):
            parts = f"{self.data_count} processes" + (
                f" of accumulate = {accumulate} micro-batches" if accumulate > 1 else ""
            )
            raise HeddleError(
                f"batch = {batch} cannot be divided among {parts}: choose a multiple of {self.data_count * accumulate}"
            )


def set_timeout(seconds: float) -> None:
    """How long the collectives of every group of this process wait from now on, but for those that save in the background."""
    for group in dist.distributed_c10d._world.pg_map:
        if group.group_desc != SAVES:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
