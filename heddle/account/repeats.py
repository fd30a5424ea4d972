"""Measures large models on small ones: with a few of the repeated layers, and a few tokens for recurrent layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heddle.config.layers import CustomConfig, LinearConfig, RecurrentConfig
from heddle.config.model import BlockConfig, StackConfig, TransformerConfig

FEW = 3  # the first repetition may share kept tensors with the layer before; the others are equal
LONGEST = 12  # most layers in one repetition
STEPS = (3, 4)  # consecutive numbers of tokens that recurrent layers are measured with; the first token may differ

Numbers = dict[str, int]


def measured(
    config: TransformerConfig, measure: Callable[[TransformerConfig], Mapping[str, int]], few: int = FEW
) -> Numbers:
    """The result of `measure` for a model, for numbers that grow by the same amount with every repetition of its layers.

    A stack of 96 equal layers is measured with three and with two of them, or with `few` and one less.
    """
    short, left_out = shortened(config, few)
    full = dict(measure(short))
    total = dict(full)
    for name, (numbers, times) in left_out.items():
        fewer = measure(with_layers(short, name, config.stacks()[name], numbers))
        total = {key: total[key] + times * (full[key] - fewer.get(key, 0)) for key in total}
    return total


def shortened(config: TransformerConfig, few: int = FEW) -> tuple[TransformerConfig, dict[str, tuple[list[int], int]]]:
    """The model with `few` repetitions in each stack where that saves layers, although it takes a second measurement.

    Also returns, for each such stack, its layers with one repetition less, and the number of repetitions left out. Stacks with
    custom layers stay as they are, since each of these may differ.
    """
    left_out = {}
    for name, stack in config.stacks().items():
        start, period, times = repetition([id(block) for block in stack.blocks])
        if times < 2 * few or any(isinstance(part, CustomConfig) for b in stack.blocks for part in (b.mixer, b.ffn)):
            continue
        tail = range(start + period * times, stack.depth)
        numbers = [[*range(start + period * count), *tail] for count in (few - 1, few)]
        left_out[name] = numbers[0], times - few
        config = with_layers(config, name, stack, numbers[1])
    return config, left_out


def repetition(kinds: Sequence[Any]) -> tuple[int, int, int]:
    """The repetition that saves the most layers when `FEW` of it remain: its start, period and count."""
    best, saved = (0, 1, 1), 0
    for period in range(1, min(LONGEST, len(kinds) // 2) + 1):
        start = 0
        for end in range(period, len(kinds) + 1):
            if end < len(kinds) and kinds[end] == kinds[end - period]:
                continue
            times = (end - start) // period
            if (times - FEW) * period > saved:
                best, saved = (start, period, times), (times - FEW) * period
            start = end - period + 1
    return best


def stepped(
    config: TransformerConfig, length: int, measure: Callable[[TransformerConfig, int], Mapping[str, int]]
) -> Numbers:
    """The result of `measure` for a model and `length` tokens, with recurrent layers run on a few tokens only.

    Linear layers replace them in the pass over all tokens. Recurrent layers cost the same for each further token, so `STEPS` tokens
    suffice to measure it.
    """

    def change(name: str, block: BlockConfig) -> BlockConfig:
        recurrent = isinstance(block.mixer, RecurrentConfig)
        return block.model_copy(update={"mixer": LinearConfig(taps=1)}) if recurrent else block

    mixers = [block.mixer for stack in config.stacks().values() for block in stack.blocks]
    if length <= STEPS[1] or not any(isinstance(mixer, RecurrentConfig) for mixer in mixers):
        return dict(measure(config, length))
    linear = with_blocks(config, change)
    total = dict(measure(linear, length))
    first, second = ((measure(config, tokens), measure(linear, tokens)) for tokens in STEPS)
    for key in total:
        added, added_later = (with_steps[key] - without[key] for with_steps, without in (first, second))
        total[key] += added + (added_later - added) * (length - STEPS[0])
    return total


def with_blocks(config: TransformerConfig, change: Callable[[str, BlockConfig], BlockConfig]) -> TransformerConfig:
    """The model with each block changed; `change` gets a block's name, such as `decoder.blocks.0`, and its config."""
    stacks = {}
    for name, stack in config.stacks().items():
        blocks = tuple(change(f"{name}.blocks.{number}", block) for number, block in enumerate(stack.blocks))
        stacks[name] = stack.model_copy(update={"blocks": blocks})
    return config.model_copy(update=stacks)


def single_blocks(config: TransformerConfig) -> Iterator[TransformerConfig]:
    """The model with one block in each stack, once for each block that differs from the others of its stack."""
    single = config
    for name, stack in config.stacks().items():
        single = with_layers(single, name, stack, [0])
    for name, stack in config.stacks().items():
        for number in {id(block): number for number, block in enumerate(stack.blocks)}.values():
            yield with_layers(single, name, stack, [number])


def with_layers(config: TransformerConfig, name: str, stack: StackConfig, numbers: list[int]) -> TransformerConfig:
    """The model with only these layers of `stack` in one stack, in this order."""
    blocks = tuple(stack.blocks[number] for number in numbers)
    short = stack.model_copy(update={"depth": len(blocks), "blocks": blocks, "overrides": ()})
    return config.model_copy(update={name: short})
