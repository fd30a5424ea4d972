"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

    torchrun --nproc-per-node 2 -m heddle train my.txt

Every rank reads the run, computes its share of each batch's rows, and makes the same update. Rank 0 leads: it alone makes the
run, holds its lock, scores, prints and saves.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heddle.errors import HeddleError

PATIENCE = timedelta(days=1)  # how long ranks wait for the leader, which may be reading a large text


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: its number, from 0.
        count: how many there are.
        local: how many of them are on this machine.
    """

    rank: int = 0
    count: int = 1
    local: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's tensor."""
        if self.count == 1:
            return tensor
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    def total(self, number: float) -> float:
        """The sum of every rank's number, in fp64."""
        if self.count == 1:
            return number
        return float(self.sum(torch.tensor(number, dtype=torch.float64)))

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective, with a backward pass that leaves the mean of all ranks' gradients."""
        return objective if self.count == 1 else DistributedDataParallel(objective)

    def share(self, text: str) -> str:
        """The leader's text, on every rank; each waits for the leader."""
        if self.count == 1:
            return text
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        for tensor in (length, data) if self.leads else (length,):
            dist.broadcast(tensor, 0)
        if not self.leads:
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(data, 0)
        return bytes(data.tolist()).decode()

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.count > 1:
            dist.barrier()

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


def join_ranks() -> Ranks:
    """Join the processes that torchrun started; without torchrun, this process is alone.

    Raises:
        HeddleError: this build of torch has no torch.distributed.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_available():
        raise HeddleError("this build of torch has no torch.distributed, so it cannot train with several processes")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        # gloo for the tensors that stay on the host, such as the run's name.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
