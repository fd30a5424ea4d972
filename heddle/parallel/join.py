"""Join the processes that torchrun started."""

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from heddle.errors import HeddleError, pluralize
from heddle.model.device import pick_device
from heddle.parallel.board import Board, Store, call_roll, missing_after, of_generation, part_of
from heddle.parallel.heartbeat import Heartbeat
from heddle.parallel.launcher import number, process_count
from heddle.parallel.ranks import Ranks

TRY = 5.0  # seconds of one attempt to reach the store
MOST = 65535  # number of a port


def join_ranks(device: str, start: float = 3600.0, step: float = 100.0) -> Ranks:
    """Join the processes that torchrun started; without torchrun, this process is alone.

    On `cuda`, each process takes the card with its number on this machine. A process joins once; later calls change how long it
    waits.

    Args:
        device: where to train.
        start: seconds to wait for the others' start, and for what rank 0 does alone.
        step: seconds to wait for another in a step.

    Raises:
        HeddleError: the device is not here, the processes are more than the cards, this build of torch has no
            torch.distributed, or a process is missing.
    """
    count = process_count()
    if count == 1:
        return Ranks()
    if not dist.is_available():
        raise HeddleError("this build of torch has no torch.distributed, so it cannot train with several processes")
    rank, local, here = number("RANK"), number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)
    if rank >= count:
        raise HeddleError(f"RANK = {rank}: must be below WORLD_SIZE = {count}")
    if ":" in device:
        raise HeddleError(f"device = {device!r}: {count} processes take a GPU each: set device = cuda")
    on_cards = pick_device(device).type == "cuda"
    if on_cards:
        cards = torch.cuda.device_count()
        if here > cards:
            raise HeddleError(
                f"torchrun started {here} processes here, each of which needs a GPU, but this machine has "
                f"{pluralize(cards, 'GPU')}: use --nproc-per-node {cards}, or device=cpu"
            )
        torch.cuda.set_device(local)
    board = process().join(rank, count, start, step)
    if not dist.is_initialized():
        board.agree("", "".join)  # one that has an error leaves, and the next call would wait for it
        # gloo for the tensors that stay on the host, such as the run's name.
        backend = "cpu:gloo,cuda:nccl" if on_cards else "gloo"
        # Not torchrun's store as it is: it still has the addresses of processes that ended before a restart.
        store: Any = part_of("collectives", board.notes)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=start))
    return Ranks(rank, count, here, board=board)


@dataclass
class Process:
    """This process among the others, once it has joined them.

    Attributes:
        tried: whether it has tried to.
    """

    board: Board | None = None
    heartbeat: Heartbeat | None = None
    tried: bool = False

    def join(self, rank: int, count: int, start: float, step: float) -> Board:
        """The notes that all ranks share, the first time after all of them are there."""
        self.tried = True
        if self.board is None:
            board = call_roll(part_of(_job(), connect(rank, start)), rank, count, start, step)
            self.heartbeat = Heartbeat(of_generation(part_of(_job(), connect(rank, start)), board.number), board)
            self.heartbeat.start()
            self.board = board
        self.board.start, self.board.step = start, step
        return self.board


@cache
def process() -> Process:
    """The state of this process, which torch.distributed has only one of."""
    return Process()


def _job() -> str:
    return f"heddle/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"


def connect(rank: int, seconds: float) -> Store:
    """A connection to the store of torchrun's agent; without such an agent, rank 0 has it.

    Raises:
        HeddleError: it cannot be reached.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), number("MASTER_PORT")
    if not host or port > MOST:
        raise HeddleError(
            f"MASTER_ADDR = {host!r}, MASTER_PORT = {port}: must be the machine of rank 0, and a port of it"
        )
    serves = rank == 0 and not has_agent()
    end, limit = time.monotonic() + seconds, timedelta(seconds=seconds)
    while not serves and not _answers(host, port):
        if time.monotonic() > end:
            raise HeddleError(f"{missing_after(seconds)}: rank 0, which should answer at {host}:{port}")
        time.sleep(TRY / 10)
    try:
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, None, serves, limit, wait_for_workers=False, multi_tenant=True
        )
        return store
    except RuntimeError as error:
        raise HeddleError(f"{host}:{port}, where rank 0 is: {str(error).splitlines()[0]}") from error


def has_agent() -> bool:
    """Whether the launcher has the store, and not rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), TRY).close()
    except OSError:
        return False
    return True
