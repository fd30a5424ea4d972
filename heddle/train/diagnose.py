"""Finds where a loss that is NaN or infinite comes from."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heddle.data.batch import Batch
from heddle.tasks.objective import CrossEntropy, Loss


def first_bad_layer(objective: CrossEntropy, batch: Batch, gradients: Mapping[str, Tensor | None]) -> str:
    """The first NaN or infinite value in the order of computation: in weights, a layer's output, the loss or a gradient."""
    for name, parameter in objective.model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"weights of {name}"
    bad_outputs: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if not bad_outputs and isinstance(output, Tensor) and not torch.isfinite(output).all():
                bad_outputs.append(f"output of {name}")

        return look

    leaves = [
        (name, module) for name, module in objective.model.named_modules() if name and not list(module.children())
    ]
    hooks = [module.register_forward_hook(watch(name)) for name, module in leaves]
    try:
        with torch.no_grad():
            loss: Loss = objective(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if bad_outputs or not torch.isfinite(loss.total):
        return bad_outputs[0] if bad_outputs else "loss itself"
    bad = [name for name, gradient in gradients.items() if gradient is not None and not torch.isfinite(gradient).all()]
    # Gradients are computed from the last layer to the first.
    return f"gradient of {bad[-1]}" if bad else "gradient's norm" if gradients else "loss itself"
