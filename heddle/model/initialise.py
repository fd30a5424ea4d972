"""Initial weights, by the table of roles."""

from collections.abc import Iterator, Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.model.roles import row_of

CONSTANTS = {"zero": 0.0, "one": 1.0}


def of_branches(config: TransformerConfig) -> dict[str, float]:
    """Standard deviation of the last matrix of each branch, by stack.

    Each branch adds to the residual stream, so each is divided by the root of the number of branches: nanoGPT's rule.
    """
    deviations = {}
    for name, stack in config.stacks().items():
        branches = sum(1 + (block.cross is not None) + (block.ffn.kind != "none") for block in stack.blocks)
        deviations[name] = config.initial.std / sqrt(branches) if config.initial.scale_residual else config.initial.std
    return deviations


@checked()
@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
    """Initialise every parameter, except those of a user's modules, which their constructors initialise.

    Raises:
        HeddleError: a parameter of two or more dimensions matches no row of the table of roles.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for name, values in initial_values(shapes, config, generator):
        parameters[name].copy_(values)


def initial_values(
    shapes: Mapping[str, tuple[int, ...]], config: TransformerConfig, generator: torch.Generator | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The values that `initialise` gives parameters of these shapes, one after another; each is made when it is next.

    The rule `xavier` samples parameters of two or more dimensions uniformly, with bounds from their sizes, and the others like
    `normal`. Random numbers are generated on the CPU, so that a seed gives the same weights on every device.
    """
    std, xavier, branches = config.initial.std, config.initial.rule == "xavier", of_branches(config)
    for name, shape in shapes.items():
        kind = row_of(name, len(shape)).initial
        if kind == "constructor":
            continue
        if kind in CONSTANTS:
            yield name, torch.full((), CONSTANTS[kind], dtype=torch.float32, device="cpu").expand(shape)
        elif xavier and len(shape) >= 2:
            bound = sqrt(6 / (shape[-1] + shape[-2]))
            yield name, _empty(shape).uniform_(-bound, bound, generator=generator)
        else:
            stack, position = name.split(".")[0], config.initial.position_std or std
            deviation = {"normal": std, "position": position, "branch": branches.get(stack, std)}[kind]
            yield name, _empty(shape).normal_(0.0, deviation, generator=generator)


def _empty(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")
