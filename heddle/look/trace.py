"""Record one forward pass: tensors at named sites, and the attention of named layers."""

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
from heddle.look.edits import Edit, changes, without
from heddle.look.sites import Site, hooked, kernels, match_sites, watch_attention
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.output import Output


@displayed("list(trace), trace[name], .attention")
@dataclass(frozen=True, eq=False)
class Trace(Mapping[str, Tensor]):
    """The tensors of one pass by name, `trace["decoder.3.residual_after"]`, and the model's output.

    Attributes:
        tensors: recorded tensors by name.
        attention: recorded attention layers by name, see `AttentionPass`.
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
        """The logits at each position, computed on access."""
        with torch.set_grad_enabled(self.output.hidden.requires_grad):
            return self.model.logits(self.output.hidden)

    def _lines(self) -> Iterator[str]:
        yield f"Trace: {pluralize(len(self.tensors), 'tensor')}, {pluralize(len(self.attention), 'attention layer')}"
        yield from (f"  {name} {list(tensor.shape)}" for name, tensor in self.tensors.items())
        yield from (f"  attention {name}: {layer.queries} × {layer.keys}" for name, layer in self.attention.items())

    def _repr_html_(self) -> str:
        def row(name: str, tensor: Tensor) -> str:
            wide = tensor.float()
            statistics = f"{wide.mean():.4g}</td><td>{wide.std(correction=0):.4g}" if tensor.numel() else "</td><td>"
            return f"<tr><td>{escape(name)}</td><td>{' × '.join(map(str, tensor.shape))}</td><td>{statistics}</td></tr>"

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
    """Run the model in evaluation mode, and record named tensors.

    Args:
        model: any model of heddle.
        tokens: ids.
        names: sites to record, see `heddle.look.names`; patterns such as `decoder.*.mixer.output` are allowed.
        attention: attention layers to record, such as `decoder.3.mixer`, `decoder.*.cross` or `*`.
        edits: interventions, see `heddle.look.edits`; tensors are recorded after edits.
        gradients: record operations for autograd.
        more: further model arguments: layout, source, source_layout, types, source_types, cache.

    Raises:
        HeddleError: the model has no such site, or rejects its inputs.
    """
    tensors: dict[str, Tensor] = {}
    attention_passes: dict[str, AttentionPass] = {}
    traced_sites = match_sites(model, names)
    layers = kernels(model, attention) if attention else {}

    def keep(site: Site) -> Any:
        return lambda tensor: tensors.__setitem__(site.name, tensor)

    with (
        evaluating(model),
        torch.set_grad_enabled(gradients),
        hooked(changes(model, edits), [(site, keep(site)) for site in traced_sites], without(model, edits)),
        watch_attention(layers, attention_passes.__setitem__),
    ):
        output: Output = model(tokens, **more)
    ordered = {site.name: tensors[site.name] for site in traced_sites if site.name in tensors}  # in forward order
    return Trace(ordered, attention_passes, output, model)


def sort_layers(names: Iterable[str]) -> list[str]:
    """Sort names of attention layers, such as `decoder.3.mixer`, in forward order."""
    return sorted(
        names, key=lambda name: (name.split(".")[0] == "decoder", int(name.split(".")[1]), name.split(".")[2])
    )
