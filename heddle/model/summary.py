"""A model in a few lines."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from torch import nn

from heddle.config.model import TransformerConfig
from heddle.display import screen
from heddle.errors import pluralize


def summary(model: nn.Module, config: TransformerConfig) -> str:
    """Its stacks, its sizes, its parts, and where the rest can be seen."""
    return screen(_lines(model, config), "print(model.decoder), model.config, heddle.account.count(model.config)")


def _lines(model: nn.Module, config: TransformerConfig) -> Iterator[str]:
    stacks = " and ".join(f"{name} of {pluralize(each.depth, 'layer')}" for name, each in config.stacks().items())
    parameters = list(model.parameters())
    place = Counter(f"{str(each.dtype).removeprefix('torch.')} on {each.device}" for each in parameters)
    yield f"Transformer: {stacks}, D = {config.dim}, V = {config.vocab_size}, context = {config.context}"
    yield f"  {sum(each.numel() for each in parameters):,} parameters, {', '.join(place)}"
    for name, part in model.named_children():
        blocks = getattr(part, "blocks", None)
        if blocks is None:
            yield f"  {name}: {type(part).__name__}"
            continue
        kinds = Counter(" + ".join(_kinds(block)) for block in blocks)
        yield from (f"  {name}.blocks: {count} × {type(blocks[0]).__name__}({kind})" for kind, count in kinds.items())
    yield "  more: print(model.decoder), model.config, heddle.account.count(model.config)"


def _kinds(block: nn.Module) -> Iterator[str]:
    """The classes of what a block does."""
    inner = chain.from_iterable(each.children() if hasattr(each, "norm") else () for each in block.children())
    return (type(each).__name__ for each in chain(block.children(), inner) if next(each.parameters(), None) is not None)
