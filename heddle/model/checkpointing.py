"""Gradient checkpointing: save only each block's input for the backward pass, and recompute the rest of the block.

The same function runs twice on the same inputs and random numbers, so the loss and the gradient are bit-equal to those without it
(Chen et al. 2016; L0-58: one dropout mask for the forward and the backward pass).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heddle.checks import checked
from heddle.model.transformer import Transformer
from heddle.nn.block import Block
from heddle.nn.output import Hidden, Output
from heddle.nn.scope import Scope
from heddle.nn.state import FORGETS, BlockState


@checked()
def checkpoint_activations(model: Transformer) -> None:
    """Checkpoint every block from now on, while the model is in training mode and gradients are computed.

    The block's `forward` is wrapped, so parameters keep their names, and a hook on a block fires once. A hook on a module inside
    a block also fires when the backward pass computes the block again.
    """
    for block in _blocks(model):
        block.forward = partial(_checkpointed, block)  # type: ignore[method-assign]


@contextmanager
def checkpointed(model: Transformer, enabled: bool = True) -> Iterator[None]:
    """Checkpoint every block inside the `with` block, if `enabled`."""
    if enabled:
        checkpoint_activations(model)
    try:
        yield
    finally:
        for block in _blocks(model) if enabled else ():
            vars(block).pop("forward", None)


def can_compile(model: Transformer) -> bool:
    """Whether torch.compile can compile checkpointed blocks: not those with buffers, which only a user's modules have."""
    return not any(module._buffers for block in _blocks(model) for module in block.modules())


def _blocks(model: Transformer) -> Iterator[Block]:
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            yield from stack.layers()


def _checkpointed(
    block: Block, x: Hidden, scope: Scope, state: BlockState = FORGETS, source: Scope | None = None
) -> Output:
    """The block's output, as `type(block).forward` computes it."""
    forward = partial(type(block).forward, block)
    # A cache would remember the tokens twice.
    if not (block.training and torch.is_grad_enabled()) or any(each.stores for each in state):
        return forward(x, scope, state, source)
    buffered = [module for module in block.modules() if module._buffers]
    contexts: dict[str, Any] = (
        {"context_fn": partial(_contexts, buffered)} if buffered else {}
    )  # torch.compile does not support contexts
    output: Output = checkpoint(forward, x, scope, state, source, use_reentrant=False, **contexts)
    return output


def _contexts(modules: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the forward pass and of the recomputation, which must see the original buffers of a user's modules."""
    before = [
        {name: None if value is None else value.clone() for name, value in module._buffers.items()}
        for module in modules
    ]
    return nullcontext(), _exchanged(modules, before)


@contextmanager
def _exchanged(modules: list[nn.Module], buffers: list[dict[str, Tensor | None]]) -> Iterator[None]:
    """Temporarily replace buffers. The tensors are exchanged, not copied, since the backward pass may reference either."""
    current: list[Any] = [dict(module._buffers) for module in modules]
    for module, replacement in zip(modules, buffers, strict=True):
        module._buffers.update(replacement)
    try:
        yield
    finally:
        for module, original in zip(modules, current, strict=True):
            module._buffers.update(original)
