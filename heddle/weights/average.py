"""Averages the weights of several checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.errors import HeddleError, pluralize
from heddle.weights.checkpoints import check, checkpoints, weights_files
from heddle.weights.tensors import Weights, compare


@checked(count=at_least(1))
def average(run: str | Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights in a run's newest `count` checkpoints (Vaswani et al. 2017, section 6.1), or of its adapters.

    `model.load_state_dict(average(run, 5))` loads them, and `publish` makes them the weights of the run.

    Raises:
        HeddleError: the run has fewer checkpoints, or one of them is damaged.
    """
    newest = [path for _, path in checkpoints(Path(run))][:count]
    if len(newest) < count:
        raise HeddleError(f"count = {count}: {run} has {pluralize(len(newest), 'checkpoint')}; give a smaller count")
    return mean_of(newest)


def mean_of(folders: Sequence[Path], read: Callable[[Weights, str], Tensor] = Weights.__getitem__) -> dict[str, Tensor]:
    """The mean of the weights in several directories, one tensor at a time. Integers come from the first directory.

    Args:
        read: reads a tensor, or the part of it that this process has.

    Raises:
        HeddleError: weights are missing or damaged, or belong to another model.
    """
    for folder in folders:
        if problems := check(folder, tuple(file.name for file in weights_files(folder))):
            raise HeddleError(f"{folder / problems[0]}; the weights in it cannot be used")
    weights = [Weights(weights_files(folder)) for folder in folders]
    for folder, each in zip(folders, weights, strict=True):
        compare(each.specs, weights[0].specs, folder)
    return {name: _mean([read(each, name) for each in weights]) for name in weights[0]}


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first
    return torch.stack(tensors).mean(0, dtype=torch.float64).to(first.dtype)
