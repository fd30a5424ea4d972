"""What happened in one pass: the tensors at named sites, and the attention of named layers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import pluralize
from heddle.look.attention import AttentionPass
from heddle.look.edits import Edit, changes
from heddle.look.sites import Site, attending, chosen, hooked, kernels
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.output import Output


@displayed("list(trace), trace[name], .attention")
@dataclass(frozen=True, eq=False)
class Trace(Mapping[str, Tensor]):
    """The tensors of one pass by name, `trace["decoder.3.residual_after"]`, and the model's output.

    Attributes:
        tensors: the tensors that were named.
        attention: the attention layers that were named, see `AttentionPass`.
        output: the model's output.
        model: the model.
    """

    tensors: dict[str, Tensor]
    attention: dict[str, AttentionPass]
    output: Output
    model: Transformer

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def logits(self) -> Float[Tensor, "B T V"]:
        """The scores of the next token at each position; they are computed when asked for."""
        with torch.set_grad_enabled(self.output.hidden.requires_grad):
            return self.model.logits(self.output.hidden)

    def _lines(self) -> Iterator[str]:
        yield f"Trace: {pluralize(len(self.tensors), 'tensor')}, {pluralize(len(self.attention), 'attention layer')}"
        yield from (f"  {name} {list(tensor.shape)}" for name, tensor in self.tensors.items())
        yield from (f"  attention {name}: {layer.queries} × {layer.keys}" for name, layer in self.attention.items())

    def _repr_html_(self) -> str:
        def row(name: str, tensor: Tensor) -> str:
            wide = tensor.float()
            said = f"{wide.mean():.4g}</td><td>{wide.std(correction=0):.4g}" if tensor.numel() else "</td><td>"
            return f"<tr><td>{escape(name)}</td><td>{' × '.join(map(str, tensor.shape))}</td><td>{said}</td></tr>"

        rows = "".join(row(name, tensor) for name, tensor in self.tensors.items())
        return f"<table><tr><th>name</th><th>shape</th><th>mean</th><th>deviation</th></tr>{rows}</table>"


@checked()
def trace(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    names: str | Sequence[str] = (),
    *,
    attention: str | Sequence[str] = (),
    edits: Sequence[Edit] = (),
    gradients: bool = False,
    **more: Any,
) -> Trace:
    """Call the model, in evaluation mode, and keep the named tensors.

    Args:
        model: any model of heddle.
        tokens: ids.
        names: what to keep, see `heddle.look.names`; `*` stands for anything, as in `decoder.*.mixer.output`.
        attention: layers whose attention to keep, such as `decoder.3.mixer`, `decoder.*.cross` or `*`.
        edits: what to change in this pass, see `heddle.look.edits`; what is kept is what was changed.
        gradients: whether to record operations for autograd.
        more: other arguments of the model: layout, source, source_layout, types, source_types, cache.

    Raises:
        HeddleError: a name is not in this model; or what the model itself raises.
    """
    tensors: dict[str, Tensor] = {}
    attended: dict[str, AttentionPass] = {}
    watched = chosen(model, names)
    layers = kernels(model, attention) if attention else {}

    def keep(site: Site) -> Any:
        return lambda tensor: tensors.__setitem__(site.name, tensor)

    with (
        evaluating(model),
        torch.set_grad_enabled(gradients),
        hooked(changes(model, edits), [(site, keep(site)) for site in watched]),
        attending(layers, attended.__setitem__),
    ):
        output: Output = model(tokens, **more)
    inner = {site.name: tensors[site.name] for site in watched if site.name in tensors}  # in the order of a pass
    return Trace(inner, attended, output, model)


def layers_of(found: Iterable[str]) -> list[str]:
    """The names of attention layers, `decoder.3.mixer`, in order."""
    return sorted(
        found, key=lambda name: (name.split(".")[0] == "decoder", int(name.split(".")[1]), name.split(".")[2])
    )
