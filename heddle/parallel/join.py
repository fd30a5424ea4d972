"""Join the processes that torchrun started."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from heddle.errors import HeddleError, pluralize
from heddle.model.device import pick_device
from heddle.parallel.ranks import Ranks

PATIENCE = timedelta(
    days=1
)  # how long ranks wait until the leader has prepared a run, which may mean to read a large text


def process_count() -> int:
    """How many processes torchrun started; without torchrun, 1."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def join_ranks(device: str) -> Ranks:
    """Join the processes that torchrun started; without torchrun, this process is alone.

    On `cuda`, each process takes the card with its number on this machine.

    Raises:
        HeddleError: the device is not here, the processes are more than the cards, or this build of torch has no
            torch.distributed.
    """
    count = process_count()
    if count == 1:
        return Ranks()
    if not dist.is_available():
        raise HeddleError("this build of torch has no torch.distributed, so it cannot train with several processes")
    local, here = (int(os.environ.get(name, each)) for name, each in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))
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
    if not dist.is_initialized():
        # gloo for the tensors that stay on the host, such as the run's name.
        backend = "cpu:gloo,cuda:nccl" if on_cards else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), here)
