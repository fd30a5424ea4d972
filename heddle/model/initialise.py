"""Initial weights, as one ordered table: the first row whose pattern fits a parameter's name decides."""

import re
from math import sqrt

import torch
from torch import nn

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.nn.custom import Custom


def initial_table(config: TransformerConfig) -> list[tuple[str, str, float]]:
    """Rows (pattern, what, number): `constant` c, `normal` std, or `xavier`, uniform by the matrix's sizes.

    What has no two sizes is drawn as `normal` under `xavier`, too.
    """
    std = config.initial.std
    rows = [
        (r"(^|[._])bias$", "constant", 0.0),
        (r"(norm|before|after|outside)\.weight$", "constant", 1.0),
    ]
    if config.initial.rule == "xavier":
        return [*rows, (r"", "xavier", std)]
    rows += [(r"\.positions\.weight$", "normal", config.initial.position_std or std)]
    for name, stack in config.stacks().items():
        # Each branch adds to the stream, so each is made smaller by the root of their number: nanoGPT's rule.
        branches = sum(1 + (b.cross is not None) + (b.ffn.kind != "none") for b in stack.blocks)
        last = r"(mixer\.((o|output)\.)?weight|cross\.o\.weight|ffn\.(shared\.)?down\.weight|ffn\.experts\.down)$"
        number = std / sqrt(branches) if config.initial.scale_residual else std
        rows += [(rf"^{name}\.blocks\.\d+\.{last}", "normal", number)]
    return [*rows, (r"", "normal", std)]


@checked()
@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
    """Fill every parameter but those of a user's own modules, which their constructors have filled.

    The same generator seed gives the same weights on every device, since draws are on the CPU.
    """
    table = initial_table(config)
    custom = [module for module in model.modules() if isinstance(module, Custom)]
    filled = {parameter for module in custom for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter in filled:
            continue
        kind, number = next((kind, number) for pattern, kind, number in table if re.search(pattern, name))
        if kind == "constant":
            parameter.fill_(number)
            continue
        draw = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        if kind == "xavier" and parameter.dim() >= 2:
            bound = sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))
            parameter.copy_(draw.uniform_(-bound, bound, generator=generator))
        else:
            parameter.copy_(draw.normal_(0.0, number, generator=generator))
