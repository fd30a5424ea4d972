"""Measures deep models with few layers: repeated layers are measured a few times and counted as often as they occur."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heddle.config.layers import CustomConfig
from heddle.config.model import StackConfig, TransformerConfig

FEW = 3  # the first repetition may share kept tensors with the layer before; the others are equal
LONGEST = 12  # most layers in one repetition

Numbers = dict[str, int]


def measured(config: TransformerConfig, measure: Callable[[TransformerConfig], Mapping[str, int]]) -> Numbers:
    """The result of `measure` for a model, for numbers that grow by the same amount with every repetition of its layers.

    A stack of 96 equal layers is measured with three and with two of them.
    """
    short, left_out = shortened(config)
    whole = dict(measure(short))
    total = dict(whole)
    for name, (numbers, times) in left_out.items():
        less = measure(_with_layers(short, name, config.stacks()[name], numbers))
        total = {key: total[key] + times * (whole[key] - less.get(key, 0)) for key in total}
    return total


def shortened(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, tuple[list[int], int]]]:
    """The model with `FEW` repetitions in each stack.

    Also returned, for each stack that has more: its layers with one repetition less, and how many were left out. Custom
    layers stay, since each of them may differ.
    """
    left_out = {}
    for name, stack in config.stacks().items():
        start, period, times = repetition([id(block) for block in stack.blocks])
        if times <= FEW or any(isinstance(part, CustomConfig) for b in stack.blocks for part in (b.mixer, b.ffn)):
            continue
        rest = range(start + period * times, stack.depth)
        kept = [[*range(start + period * few), *rest] for few in (FEW - 1, FEW)]
        left_out[name] = kept[0], times - FEW
        config = _with_layers(config, name, stack, kept[1])
    return config, left_out


def repetition(kinds: Sequence[Any]) -> tuple[int, int, int]:
    """The repetition that saves most layers when `FEW` of it stay: its start, its period and its count."""
    best, saved = (0, 1, 1), 0
    for period in range(1, min(LONGEST, len(kinds) // 2) + 1):
        start = 0
        for place in range(period, len(kinds) + 1):
            if place < len(kinds) and kinds[place] == kinds[place - period]:
                continue
            times = (place - start) // period
            if (times - FEW) * period > saved:
                best, saved = (start, period, times), (times - FEW) * period
            start = place - period + 1
    return best


def _with_layers(config: TransformerConfig, name: str, stack: StackConfig, numbers: list[int]) -> TransformerConfig:
    """The model with only these layers of one of its stacks, with the overrides that applied to them."""
    overrides = [
        {"layers": str(place), "block": each.block}
        for each in stack.overrides
        for place, number in enumerate(numbers)
        if number in each.chosen(stack.depth)
    ]
    changed = stack.to_dict() | {"depth": len(numbers), "overrides": overrides}
    return type(config).of({**config.to_dict(), name: changed})
