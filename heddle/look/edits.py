"""Changes to a pass: heads that are switched off, activations from another prompt, a direction that is added.

An edit acts through a forward hook, so it works in training, in scoring and in every step of generation. What it does is what the
same change of the weights would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError, article
from heddle.look.sites import Change, Site, broadcast, chosen, hooked
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
"""What can be selected of a tensor, and the letter of its axis."""

Where = Mapping[str, Sequence[int]]


@displayed()
@dataclass(frozen=True, eq=False)
class Edit:
    """A change of the tensors at the sites whose names match.

    Attributes:
        name: a site or a pattern, such as `decoder.3.mixer.heads` or `decoder.*.ffn.output`.
        change: from a tensor to a tensor of the same shape.
        where: which part of it changes, `{"heads": [2], "positions": [-1]}`; the rest stays. Positions count within a call.
    """

    name: str
    change: Change
    where: Where = field(default_factory=dict)


@checked()
def ablate(name: str, value: float = 0.0, **where: Sequence[int]) -> Edit:
    """Set a tensor, or a part of it, to a value: a head that says nothing, an expert that adds nothing.

    Args:
        name: `decoder.3.mixer.heads` for heads; `decoder.3.mixer.added` or `.ffn.added` for a whole branch; `decoder.3.ffn.gates`
            for experts; `decoder.3.ffn.hidden` for neurons.
        where: heads, positions, neurons, experts, …: lists of numbers, from 0; negative ones count from the end.
    """
    return Edit(name, lambda tensor: torch.full_like(tensor, value), where)


@checked()
def replace(name: str, tensor: Tensor, **where: Sequence[int]) -> Edit:
    """Put another tensor in its place: activations of another prompt (activation patching), or a mean over many.

    Args:
        name: a site.
        tensor: anything that broadcasts to the tensor there.
        where: which part; the rest stays.
    """
    return Edit(name, lambda old: broadcast("replace", "tensor", tensor, old), where)


@checked()
def steer(name: str, vector: Float[Tensor, "*some D"], factor: float = 1.0, **where: Sequence[int]) -> Edit:
    """Add a vector: a direction found as the difference between two sets of texts, for example.

    Args:
        name: usually a residual stream, such as `decoder.3.residual_after`.
        vector: anything that broadcasts to the tensor there.
        factor: what to multiply it by.
        where: which part; the rest stays.
    """
    return Edit(name, lambda old: old + factor * broadcast("steer", "vector", vector, old), where)


@contextmanager
@checked()
def edited(model: Transformer, edits: Sequence[Edit]) -> Iterator[Transformer]:
    """While entered, every call of the model is changed by the edits: scoring, generation, training.

    Raises:
        HeddleError: a name is not in this model, or a part is not in the tensor.
    """
    with hooked(changes(model, edits), ()):
        yield model


def changes(model: Transformer, edits: Sequence[Edit]) -> list[tuple[Site, Change]]:
    """The sites that edits change, each with its function."""
    found = []
    for edit in edits:
        for site in chosen(model, edit.name):
            axes = {axis_of(site, name): numbers for name, numbers in edit.where.items()}
            found.append((site, _partly(site, edit.change, axes)))
    return found


def axis_of(site: Site, name: str) -> int:
    """The number of a site's axis by what is selected from it, such as `heads`.

    Raises:
        HeddleError: the site has no such axis.
    """
    letters = site.axes.split()
    found = [place for place, letter in enumerate(letters) if letter in AXES.get(name, "")]
    if not found:
        has = [each for each, options in AXES.items() if any(letter in options for letter in letters)]
        raise HeddleError(f"{site.name} has no {name}: choose from its {', '.join(has)}")
    return found[-1]


def _partly(site: Site, change: Callable[[Tensor], Tensor], axes: Mapping[int, Sequence[int]]) -> Change:
    def act(tensor: Tensor) -> Tensor:
        try:
            new = change(tensor)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            message = " ".join(str(error).split())
            raise HeddleError(
                f"an edit of {site.name}, which is {list(tensor.shape)} there, failed: {message}"
            ) from error
        if not isinstance(new, Tensor):
            raise HeddleError(f"an edit of {site.name} returned {article(type(new).__name__)} instead of a tensor")
        if new.shape != tensor.shape:
            raise HeddleError(f"an edit of {site.name} returned {list(new.shape)} instead of {list(tensor.shape)}")
        if not axes:
            return new
        taken = torch.ones((), dtype=torch.bool, device=tensor.device)
        for axis, numbers in axes.items():
            size = tensor.shape[axis]
            if odd := [number for number in numbers if not -size <= number < size]:
                raise HeddleError(f"{site.name} is {list(tensor.shape)}: axis {axis} has no number {odd[0]}")
            one = torch.zeros(size, dtype=torch.bool, device=tensor.device)
            one[torch.tensor(list(numbers), dtype=torch.long, device=tensor.device)] = True
            taken = taken & one.view([-1 if place == axis else 1 for place in range(tensor.dim())])
        return torch.where(taken, new, tensor)

    return act
