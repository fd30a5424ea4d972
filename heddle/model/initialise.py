"""Initial weights, as one ordered table: the first row whose pattern fits a parameter's name decides."""

import re
from math import sqrt

import torch
from torch import nn

from heddle.config.model import TransformerConfig


def initial_table(config: TransformerConfig) -> list[tuple[str, str, float]]:
    """Rows (pattern, what, number): `constant` c or `normal` std. nanoGPT's rule (L0-13, D-45)."""
    std = config.initial.std
    branches = 2 * config.decoder.depth  # each adds to the stream, so each is made smaller by the root of their number
    residual = std / sqrt(branches) if config.initial.scale_residual else std
    return [
        (r"\.bias$", "constant", 0.0),
        (r"(norm|before|after|outside)\.weight$", "constant", 1.0),
        (r"\.(mixer\.o|ffn\.down)\.weight$", "normal", residual),
        (r"\.weight$", "normal", std),
    ]


@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
    """Fill every parameter. The same generator seed gives the same weights on every device, since draws are on the CPU."""
    table = initial_table(config)
    for name, parameter in model.named_parameters():
        kind, number = next((kind, number) for pattern, kind, number in table if re.search(pattern, name))
        if kind == "constant":
            parameter.fill_(number)
        else:
            draw = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, number, generator=generator)
            parameter.copy_(draw)
