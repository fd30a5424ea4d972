"""Initial weights, by the table of roles."""

from math import sqrt

import torch
from torch import nn

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

    The rule `xavier` samples parameters of two or more dimensions uniformly, with bounds from their sizes, and the others like
    `normal`. Random numbers are generated on the CPU, so that a seed gives the same weights on every device.

    Raises:
        HeddleError: a parameter of two or more dimensions matches no row of the table of roles.
    """
    std, xavier, branches = config.initial.std, config.initial.rule == "xavier", of_branches(config)
    for name, parameter in model.named_parameters():
        kind = row_of(name, parameter.dim()).initial
        if kind == "constructor":
            continue
        if kind in CONSTANTS:
            parameter.fill_(CONSTANTS[kind])
            continue
        values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        if xavier and parameter.dim() >= 2:
            bound = sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))
            parameter.copy_(values.uniform_(-bound, bound, generator=generator))
            continue
        stack = name.split(".")[0]
        deviation = {"normal": std, "position": config.initial.position_std or std, "branch": branches.get(stack, std)}[
            kind
        ]
        parameter.copy_(values.normal_(0.0, deviation, generator=generator))
