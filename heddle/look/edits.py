"""Interventions in a forward pass: ablate heads, patch in activations, add steering vectors, leave out a mask or a norm.

Edits use forward hooks, so they apply in training, evaluation and every decoding step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError, article
from heddle.look.sites import Change, Site, broadcast, hooked, match_sites
from heddle.look.switches import match_switches
from heddle.model.transformer import Transformer

AXES = {
    "rows": "B",
    "positions": "T",
    "heads": "H",
    "kv_heads": "K",
    "keys": "S",
    "channels": "Dd",
    "neurons": "F",
    "experts": "E",
}
"""Selectors of a part of a tensor, with the letters of their axes."""

Where = Mapping[str, Sequence[int]]


@displayed()
@dataclass(frozen=True, eq=False)
class Edit:
    """A change of the tensors at matching sites.

    Attributes:
        name: a site or a pattern, such as `decoder.3.mixer.heads` or `decoder.*.ffn.output`; or a switch.
        change: from a tensor to a tensor of the same shape; None: the switch is off.
        where: the part to change, such as `{"heads": [2], "positions": [-1]}`. Positions are relative to the call.
    """

    name: str
    change: Change | None
    where: Where = field(default_factory=dict)


@checked()
def ablate(name: str, value: float = 0.0, **where: Sequence[int]) -> Edit:
    """Set a tensor, or a part of it, to a constant, such as 0 to disable a head or an expert.

    Args:
        name: `decoder.3.mixer.heads` for heads; `decoder.3.mixer.added` or `.ffn.added` for a whole branch; `decoder.3.ffn.gates`
            for experts; `decoder.3.ffn.hidden` for neurons.
        where: heads, positions, neurons, experts, …: lists of indices; negative ones count from the end.
    """
    return Edit(name, lambda tensor: torch.full_like(tensor, value), where)


@checked()
def replace(name: str, tensor: Tensor, **where: Sequence[int]) -> Edit:
    """Replace a tensor: by activations of another prompt (activation patching), or by a mean over many (mean ablation).

    Args:
        name: a site.
        tensor: broadcastable to the tensor at the site.
        where: the part to change, see `ablate`.
    """
    return Edit(name, lambda old: broadcast("replace", "tensor", tensor, old), where)


@checked()
def steer(name: str, vector: Float[Tensor, "*some D"], factor: float = 1.0, **where: Sequence[int]) -> Edit:
    """Add a steering vector, such as the difference of mean activations between two sets of texts.

    Args:
        name: usually a residual stream, such as `decoder.3.residual_after`.
        vector: broadcastable to the tensor at the site.
        factor: multiplies the vector.
        where: the part to change, see `ablate`.
    """
    return Edit(name, lambda old: old + factor * broadcast("steer", "vector", vector, old), where)


@checked()
def switch_off(name: str) -> Edit:
    """Leave out a part: W_O, a mask, positions, a skip or a norm, see `heddle.look.switches`.

    With the mask off, a cache has keys that did not see the later tokens: compare whole passes, not decoding steps.

    Args:
        name: of a switch, such as `decoder.3.mixer.mask` or `decoder.positions`, or a pattern, such as `decoder.*.ffn.before`.
    """
    return Edit(name, None)


@contextmanager
@checked()
def edited(model: Transformer, edits: Sequence[Edit]) -> Iterator[Transformer]:
    """Apply edits to every call of the model within the context.

    Raises:
        HeddleError: the model has no such site or switch, or an index is out of range.
    """
    with hooked(changes(model, edits), (), without(model, edits)):
        yield model


def without(model: Transformer, edits: Sequence[Edit]) -> list[AbstractContextManager[None]]:
    """The contexts of the switches that are off, each once."""
    off = [switch for edit in edits if edit.change is None for switch in match_switches(model, edit.name)]
    return [switch.without() for switch in {switch.name: switch for switch in off}.values()]


def changes(model: Transformer, edits: Sequence[Edit]) -> list[tuple[Site, Change]]:
    """The sites that the edits match, each with its change."""
    site_changes = []
    for edit in edits:
        if edit.change is None:
            continue
        for site in match_sites(model, edit.name):
            axes = {axis_of(site, name): numbers for name, numbers in edit.where.items()}
            site_changes.append((site, _restrict(site, edit.change, axes)))
    return site_changes


def axis_of(site: Site, name: str) -> int:
    """The axis of a site for a selector such as `heads`.

    Raises:
        HeddleError: the site has no such axis.
    """
    letters = site.axes.split()
    axes = [axis for axis, letter in enumerate(letters) if letter in AXES.get(name, "")]
    if not axes:
        selectors = [selector for selector, options in AXES.items() if any(letter in options for letter in letters)]
        raise HeddleError(f"{site.name} has no {name}: choose from its {', '.join(selectors)}")
    return axes[-1]


def _restrict(site: Site, change: Callable[[Tensor], Tensor], axes: Mapping[int, Sequence[int]]) -> Change:
    def apply(tensor: Tensor) -> Tensor:
        try:
            result = change(tensor)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            message = " ".join(str(error).split())
            raise HeddleError(f"an edit of {site.name}, which is {list(tensor.shape)}, failed: {message}") from error
        if not isinstance(result, Tensor):
            raise HeddleError(f"an edit of {site.name} returned {article(type(result).__name__)} instead of a tensor")
        if result.shape != tensor.shape:
            raise HeddleError(f"an edit of {site.name} returned {list(result.shape)} instead of {list(tensor.shape)}")
        if not axes:
            return result
        selected = torch.ones((), dtype=torch.bool, device=tensor.device)
        for axis, numbers in axes.items():
            size = tensor.shape[axis]
            if invalid := [number for number in numbers if not -size <= number < size]:
                raise HeddleError(
                    f"{site.name} is {list(tensor.shape)}: index {invalid[0]} is out of range for axis {axis}"
                )
            along_axis = torch.zeros(size, dtype=torch.bool, device=tensor.device)
            along_axis[torch.tensor(list(numbers), dtype=torch.long, device=tensor.device)] = True
            selected = selected & along_axis.view([-1 if dim == axis else 1 for dim in range(tensor.dim())])
        return torch.where(selected, result, tensor)

    return apply
