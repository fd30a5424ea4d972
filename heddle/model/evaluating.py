"""A context for evaluation mode."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Evaluation mode inside the `with` block; afterwards every module has its previous mode.

    `modules` are all modules of the model, if already known: finding them takes as long as some matrix products.
    """
    training = [module for module in modules or model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
