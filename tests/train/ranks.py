"""A program: twenty steps of two ranks, `ranks.py PRECISION OPTIMIZER …`. It prints the losses, norms and biases of each rank."""

import json
import multiprocessing
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from heddle.config.train import TrainConfig
from heddle.model import build
from heddle.model.lora import adapt
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from tests.train.test_wrapped import STEPS, config, settings_of, uneven


def reduce(tensor: torch.Tensor) -> torch.Tensor:
    summed = tensor.clone()
    dist.all_reduce(summed)
    return summed


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.get_context("fork").Pool(2) as pool:  # neither ends before the other, so each is one rank
        results = pool.starmap_async(as_rank, [(rank, port, *sys.argv[1:]) for rank in range(2)], chunksize=1)
        print(json.dumps(results.get(timeout=240)))


def as_rank(rank: int, port: int, precision: str, *optimizers: str) -> list[Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results = [trained(rank, precision, each) for each in optimizers]
    dist.destroy_process_group()
    return results


def trained(rank: int, precision: str, optimizer: str) -> tuple[list[tuple[float, float]], list[list[float]]]:
    """Losses and norms of the steps, and the experts' biases at the end."""
    settings = TrainConfig.of(settings_of(optimizer))
    model = adapt(build(config()), settings.lora)
    updates = Optimizer(model, settings, 1e-2, precision)
    objective = DistributedDataParallel(CrossEntropy(model))
    collected = []
    for step in range(STEPS):
        part = uneven(step).split(2)[rank]
        collected.append(train_step(objective, updates, part, 2, 1.0, 1.0, reduce))
    return collected, [bias.tolist() for name, bias in model.named_parameters() if name.endswith("router.bias")]


if __name__ == "__main__":
    main()
