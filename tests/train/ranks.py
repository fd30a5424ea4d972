"""A program: twenty steps as one of two ranks, `ranks.py RANK PORT PRECISION OPTIMIZER …`. It prints losses, norms and biases."""

import json
import sys

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
    rank, port, precision, *optimizers = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    print(json.dumps([trained(rank, precision, each) for each in optimizers]))
    dist.destroy_process_group()


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
