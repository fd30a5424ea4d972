"""Initial weights: what the table of roles says of each parameter, in numbers."""

from math import sqrt

import torch
from torch import nn

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.model.roles import row_of

CONSTANTS = {"zero": 0.0, "one": 1.0}


def of_branches(config: TransformerConfig) -> dict[str, float]:
    """Standard deviation of the last matrices of a stack's branches, by stack.

    Each branch adds to the stream, so each is made smaller by the root of their number: nanoGPT's rule.
    """
    found = {}
    for name, stack in config.stacks().items():
        branches = sum(1 + (block.cross is not None) + (block.ffn.kind != "none") for block in stack.blocks)
        found[name] = config.initial.std / sqrt(branches) if config.initial.scale_residual else config.initial.std
    return found


@checked()
@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
    """Fill every parameter but those of a user's own modules, which their constructors have filled.

    The rule `xavier` draws what has two sizes uniformly by them, and the rest as `normal`. The same generator seed gives the
    same weights on every device, since draws are on the CPU.

    Raises:
        HeddleError: no row of the table of roles names a parameter of two or more dimensions.
    """
    std, xavier, branches = config.initial.std, config.initial.rule == "xavier", of_branches(config)
    for name, parameter in model.named_parameters():
        kind = row_of(name, parameter.dim()).initial
        if kind == "own":
            continue
        if kind in CONSTANTS:
            parameter.fill_(CONSTANTS[kind])
            continue
        draw = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        if xavier and parameter.dim() >= 2:
            bound = sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))
            parameter.copy_(draw.uniform_(-bound, bound, generator=generator))
            continue
        stack = name.split(".")[0]
        spread = {"normal": std, "position": config.initial.position_std or std, "branch": branches.get(stack, std)}[
            kind
        ]
        parameter.copy_(draw.normal_(0.0, spread, generator=generator))
