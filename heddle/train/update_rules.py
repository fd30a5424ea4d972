"""The update rule of each parameter: AdamW, Muon or SGD, with its rate and decay."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from heddle.config.train import ProductKind, TrainConfig
from heddle.model.groups import parameter_settings
from heddle.model.precision import DTYPES
from heddle.model.roles import DECAYED, role
from heddle.parallel.parts import Parts
from heddle.train.muon import Muon


def make_optimizers(
    masters: Mapping[str, nn.Parameter],
    config: TrainConfig,
    learning_rate: float,
    precision: str,
    by_onednn: tuple[ProductKind, ...],
    parts: Parts | None = None,
) -> list[torch.optim.Optimizer]:
    """An optimizer for each set of parameters with one update rule, one rate and one decay; frozen ones have none.

    `parts` says how processes divide the masters; None: they are whole.
    """
    parameters: dict[tuple[str, float, float], list[Tensor]] = {}
    for name, setting in parameter_settings(config, masters).items():
        kind = role(name, masters[name].dim())
        rule = "adamw" if config.optimizer == "muon" and kind != "matrix" else config.optimizer
        rate = setting.rate * (config.matrix_learning_rate if rule == "muon" else learning_rate)
        decay = setting.weight_decay if kind in DECAYED else 0.0
        if not setting.frozen:
            parameters.setdefault((rule, rate, decay), []).append(masters[name])
    fused = next(iter(masters.values())).device.type in ("cpu", "cuda")
    rules: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "muon": partial(Muon, dtype=DTYPES[precision], by_onednn=by_onednn),
        "adamw": partial(torch.optim.AdamW, betas=config.betas, eps=1e-10, fused=fused),
        "sgd": partial(torch.optim.SGD, momentum=config.momentum, nesterov=config.nesterov, fused=fused),
    }
    optimizers = [rules[rule](w, lr=rate, weight_decay=decay) for (rule, rate, decay), w in parameters.items()]
    for optimizer in optimizers:
        if parts is not None and isinstance(optimizer, Muon):
            optimizer.deal(parts)
    return optimizers
