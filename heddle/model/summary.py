"""The `repr` of a model, in a few lines."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from torch import nn

from heddle.config.model import TransformerConfig
from heddle.display import screen
from heddle.errors import pluralize


def summary(model: nn.Module, config: TransformerConfig) -> str:
    """The stacks, sizes and parts of a model, and where to see the rest."""
    return screen(_lines(model, config), "print(model.decoder), model.config, heddle.account.count(model.config)")


def _lines(model: nn.Module, config: TransformerConfig) -> Iterator[str]:
    stacks = " and ".join(f"{name} of {pluralize(stack.depth, 'layer')}" for name, stack in config.stacks().items())
    parameters = list(model.parameters())
    place = Counter(f"{str(parameter.dtype).removeprefix('torch.')} on {parameter.device}" for parameter in parameters)
    yield f"Transformer: {stacks}, D = {config.dim}, V = {config.vocab_size}, context = {config.context}"
    yield f"  {sum(parameter.numel() for parameter in parameters):,} parameters, {', '.join(place)}"
    for name, part in model.named_children():
        blocks = getattr(part, "blocks", None)
        if blocks is None:
            yield f"  {name}: {type(part).__name__}"
            continue
        kinds = Counter(" + ".join(_kinds(block)) for block in blocks)
        yield from (f"  {name}.blocks: {count} × {type(blocks[0]).__name__}({kind})" for kind, count in kinds.items())
    yield "  more: print(model.decoder), model.config, heddle.account.count(model.config)"


def _kinds(block: nn.Module) -> Iterator[str]:
    """The classes of a block's modules that have parameters."""
    inner = chain.from_iterable(part.children() if hasattr(part, "norm") else () for part in block.children())
    parts = (part for part in chain(block.children(), inner) if next(part.parameters(), None) is not None)
    return (type(part).__name__ for part in parts)
