"""Parts that a pass can be made without: W_O, a mask, positions, a skip, a norm.

A part is left out by other means than a tensor at a site: a norm passes its input on, a mask's rule becomes that of an encoder.
Nothing of the model is rebuilt, and everything is restored at the end of the context.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError, did_you_mean
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.nn.block import ParallelBlock, Residual
from heddle.nn.mask import Everything
from heddle.nn.rotation import Rotation

NORMS = ("before", "after", "outside")  # of a residual


@displayed()
@dataclass(frozen=True)
class Switch:
    """A part that can be left out.

    Attributes:
        name: such as `decoder.3.mixer.mask`; layers are counted from 0.
        label: in a few words.
        description: what a pass does without it.
        without: a context whose passes leave it out.
    """

    name: str
    label: str
    description: str
    without: Callable[[], AbstractContextManager[None]] = field(repr=False)


@checked()
def switches(model: Transformer) -> dict[str, Switch]:
    """All parts of a model that can be left out, by name, in forward order."""
    parts = [
        switch
        for name, stack in (("encoder", model.encoder), ("decoder", model.decoder))
        if stack is not None
        for switch in _of_stack(name, stack, model)
    ]
    return {switch.name: switch for switch in parts}


def match_switches(model: Transformer, pattern: str) -> list[Switch]:
    """The switches that match a name or a pattern such as `decoder.*.mixer.mask`.

    Raises:
        HeddleError: it matches nothing.
    """
    available = switches(model)
    matching = [switch for name, switch in available.items() if fnmatchcase(name, pattern)]
    if not matching:
        near = did_you_mean(pattern, available)
        raise HeddleError(
            f"{pattern!r} is not a part of this model that can be switched off.{near} See heddle.look.switches(model)"
        )
    return matching


def _of_stack(name: str, stack: Stack, model: Transformer) -> Iterator[Switch]:
    computed = [stack.entry.positions, *stack.relative]
    if modules := [module for module in computed if module is not None]:
        description = "nothing is added for a token's place, and no query or key is rotated by it"
        yield Switch(f"{name}.positions", "positions", description, partial(_blank, modules))
    if stack.entry.norm is not None:
        yield _norm(f"{name}.entry.norm", "norm of the entry", [stack.entry.norm])
    config = model.config.stacks()[name]
    for number, block in enumerate(stack.layers()):
        yield from _of_branch(f"{name}.{number}.mixer", stack, number, config.blocks[number].mixer, model.config.dim)
        if block.cross is not None:
            cross = config.blocks[number].cross
            yield from _of_branch(f"{name}.{number}.cross", stack, number, cross, model.config.dim)
        if block.ffn is not None:
            yield from _of_residual(f"{name}.{number}.ffn", block, block.ffn_residual)
    if not isinstance(stack.final_norm, nn.Identity):
        yield _norm(f"{name}.final_norm", "final norm", [stack.final_norm])


def _of_branch(name: str, stack: Stack, number: int, config: Any, dim: int) -> Iterator[Switch]:
    """The parts of a mixer or of cross-attention, in forward order."""
    end = name.rpartition(".")[2]
    block = stack.blocks[number]
    module, residual = getattr(block, end), getattr(block, f"{end}_residual")
    parts = {switch.name: switch for switch in _of_residual(name, block, residual)}
    if f"{name}.before" in parts:
        yield parts.pop(f"{name}.before")
    norms = [getattr(module, each, None) for each in ("q_norm", "k_norm")]
    if qk := [norm for norm in norms if norm is not None and not isinstance(norm, nn.Identity)]:
        yield _norm(f"{name}.qk_norm", "norm of q and k", qk)
    pattern = getattr(module, "pattern", None)
    if end == "mixer" and pattern is not None and pattern.kernel is not None and pattern.rule != Everything():
        description = "each query sees all keys of its text, later ones too"
        yield Switch(f"{name}.mask", "mask", description, partial(_unmasked, stack, number))
    if hasattr(module, "o") and config.heads * module.value_dim == dim:
        description = "the joined heads are the output; offered where they are as wide as the model"
        yield Switch(f"{name}.o", "W_O", description, partial(_bypassed, [module.o]))
    yield from parts.values()


def _of_residual(name: str, block: nn.Module, residual: Residual | None) -> Iterator[Switch]:
    assert residual is not None
    for place in NORMS:
        norm = getattr(residual, place)
        if not isinstance(norm, nn.Identity):
            yield _norm(f"{name}.{place}", f"norm {place}", [norm])
    # A parallel block has one skip, which the first of its residuals adds.
    if residual.skip is not None and not (isinstance(block, ParallelBlock) and residual is block.ffn_residual):
        description = "the branch's output replaces the residual stream, to which it is otherwise added"
        yield Switch(f"{name}.skip", "skip", description, partial(_replaced, residual, skip=None))


def _norm(name: str, label: str, modules: Sequence[nn.Module]) -> Switch:
    return Switch(name, label, "its input is passed on as it is", partial(_bypassed, modules))


@contextmanager
def _bypassed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """These modules return their input."""
    with _hooked(modules, lambda module, args, output: args[0]):
        yield


@contextmanager
def _blank(modules: Sequence[nn.Module]) -> Iterator[None]:
    """These modules, which compute positions, add nothing and rotate by nothing."""

    def nothing(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Rotation):
            return Rotation(torch.ones_like(output.cos), torch.zeros_like(output.sin), output.neighbours)
        return torch.zeros_like(output)

    with _hooked(modules, nothing):
        yield


@contextmanager
def _hooked(modules: Sequence[nn.Module], hook: Callable[[nn.Module, Any, Any], Any]) -> Iterator[None]:
    with ExitStack() as handles:
        for module in modules:
            handles.callback(module.register_forward_hook(hook).remove)
        yield


@contextmanager
def _replaced(module: nn.Module, **values: Any) -> Iterator[None]:
    """A module with other attributes."""
    old = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in old.items():
            setattr(module, name, value)


@contextmanager
def _unmasked(stack: Stack, number: int) -> Iterator[None]:
    """A layer with a pattern of its own, in which each query sees all keys of its text."""
    index = stack.pattern_of[number]
    of_layers = [*stack.pattern_of]
    of_layers[number] = len(stack.patterns)
    pattern = replace(stack.patterns[index], rule=Everything())
    changed = {
        "patterns": [*stack.patterns, pattern],
        "relative_of": [*stack.relative_of, stack.relative_of[index]],
        "pattern_of": of_layers,
    }
    with _replaced(stack, **changed):
        yield
