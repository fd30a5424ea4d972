"""Cuts a trained model to fewer layers or another context: the resulting config."""

from typing import Any

from heddle.config.model import Override, StackConfig, TransformerConfig
from heddle.errors import HeddleError


def cut(
    config: TransformerConfig, depths: dict[str, int | None], context: int | None, name: str = "the model"
) -> TransformerConfig:
    """The model with the first layers of each stack, and with another context.

    Positions that are computed reach any context; a learned table can only lose its last rows.

    Args:
        config: the original model.
        depths: layers to keep by stack; None: all.
        context: tokens in a row; None: unchanged.
        name: the model's name in errors.

    Raises:
        HeddleError: the model has fewer layers or learned positions.
    """
    changes: dict[str, Any] = {} if context is None else {"context": context}
    for stack_name, stack in config.stacks().items():
        depth = depths.get(stack_name)
        depth = depth if isinstance(depth, int) else stack.depth  # an invalid value raises where it is validated
        if depth > stack.depth:
            raise HeddleError(
                f"{stack_name}.depth = {depth}: the {stack_name} of {name} has {stack.depth} layers, and more would be untrained; "
                f"set depth={stack.depth} or less"
            )
        if context is not None and context > config.context and stack.entry.positions == "learned":
            raise HeddleError(
                f"context = {context}: {name} has learned {config.context} positions, and more would be untrained; "
                f"set context={config.context} or less"
            )
        changes[stack_name] = _first_layers(stack, depth)
    return config.model_copy(update=changes)


def _first_layers(stack: StackConfig, depth: int) -> StackConfig:
    """The stack's first layers, unchanged. Overrides that would select other layers now are split into one per layer."""
    if depth == stack.depth:
        return stack
    overrides: list[Override] = []
    for override in stack.overrides:
        layers = [number for number in override.chosen(stack.depth) if number < depth]
        if layers == list(override.chosen(depth)):
            overrides += [override] * bool(layers)
        else:
            overrides += [override.model_copy(update={"layers": str(number)}) for number in layers]
    return stack.model_copy(update={"depth": depth, "overrides": tuple(overrides)})


def describe_cut(config: TransformerConfig, original: TransformerConfig) -> list[str]:
    """Describe how a model was cut, for messages; empty if it was not."""
    parts = [
        f"the first {stack.depth} of {full.depth} layers of its {name}"
        for (name, stack), full in zip(config.stacks().items(), original.stacks().values(), strict=True)
        if stack.depth != full.depth
    ]
    if config.context != original.context:
        parts.append(f"context {config.context} instead of {original.context}")
    return parts
