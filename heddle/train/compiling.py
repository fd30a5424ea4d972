"""Training compiled by torch.compile: block by block on a GPU, in one graph on a CPU.

A graph of the whole objective repeats every block and every chunk of the loss, and takes long to compile if they are many. Instead,
blocks with equal configs share one graph, and so do the chunks of the loss; the rest of the objective is a few operations.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

from heddle.data.batch import Batch
from heddle.model.device import compile_graphs
from heddle.nn.block import Block
from heddle.tasks.loss_chunk import of_chunk
from heddle.tasks.objective import CrossEntropy, Loss

Objective = Callable[[Batch], Loss]
BY_BLOCK = ("cuda",)  # kinds of devices; elsewhere one graph of everything runs faster


def compile_objective(objective: CrossEntropy, **settings: Any) -> Objective:
    """The objective compiled for the model's device, with torch.compile's settings."""
    if objective.model.device.type not in BY_BLOCK:
        compiled: Objective = compile_graphs(objective, **settings)
        return compiled
    return compile_blocks(objective, **settings)


def compile_blocks(objective: CrossEntropy, **settings: Any) -> Objective:
    """The objective with each block and each chunk of the loss compiled, in training only: evaluation calls them as they are."""
    chunk = _compiled(of_chunk, settings)
    forwards = {block: partial(compiled, block) for block, compiled in _forwards(objective, settings)}

    def by_block(batch: Batch) -> Loss:
        with _replaced(objective, forwards, chunk):
            loss: Loss = objective(batch)
            return loss

    return by_block


def _forwards(objective: CrossEntropy, settings: dict[str, Any]) -> Iterator[tuple[Block, Callable[..., Any]]]:
    """Each block with its compiled `forward`, which blocks with equal configs share: parameters are inputs of a graph."""
    model = objective.model
    for config, stack in ((model.config.encoder, model.encoder), (model.config.decoder, model.decoder)):
        if config is None or stack is None:
            continue
        compiled = list[Callable[..., Any]]()
        for number, block in enumerate(stack.layers()):
            first = config.blocks.index(config.blocks[number])
            # Checkpointing is part of the graph, so that the compiler sees what it recomputes.
            own = vars(block).get("forward")
            forward = type(block).forward if own is None else own.func
            compiled.append(_compiled(forward, settings) if first == number else compiled[first])
            yield block, compiled[number]


def _compiled(function: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    """`function`, to be compiled for one objective: torch keeps graphs by code object, and few for each."""
    code, name, defaults = function.__code__.replace(), function.__name__, function.__defaults__
    copy = FunctionType(code, function.__globals__, name, defaults, function.__closure__)
    compiled: Callable[..., Any] = compile_graphs(copy, **settings)
    return compiled


@contextmanager
def _replaced(
    objective: CrossEntropy, forwards: Mapping[Block, Callable[..., Any]], chunk: Callable[..., Any]
) -> Iterator[None]:
    """Compute blocks and chunks by these functions inside the `with` block."""
    before = {block: vars(block).get("forward") for block in forwards}
    for block, forward in forwards.items():
        block.forward = forward  # type: ignore[method-assign]
    objective.one_chunk = chunk
    try:
        yield
    finally:
        objective.one_chunk = of_chunk
        for block, own in before.items():
            del block.forward
            if own is not None:
                block.forward = own  # type: ignore[method-assign]
