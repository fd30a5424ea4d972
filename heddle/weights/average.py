"""Averages the weights of several checkpoints."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.errors import HeddleError, pluralize
from heddle.weights.checkpoints import check, checkpoints, weights_file
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


def mean_of(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several directories, one tensor at a time. Integers come from the first directory.

    Raises:
        HeddleError: weights are missing or damaged, or belong to another model.
    """
    for folder in folders:
        if problems := check(folder, (weights_file(folder).name,)):
            raise HeddleError(f"{folder / problems[0]}; the weights in it cannot be used")
    files = [Weights([weights_file(folder)]) for folder in folders]
    for folder, file in zip(folders, files, strict=True):
        compare(file.specs, files[0].specs, folder)
    return {name: _mean([file[name] for file in files]) for name in files[0]}


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first
    return torch.stack(tensors).mean(0, dtype=torch.float64).to(first.dtype)
