"""Adapters, stored separately from the weights that they were trained on, in one small file.

`adapter.safetensors` contains each layer's two factors, `LAYER.lora_a` [r D] and `LAYER.lora_b` [F r], and other trained weights in
full, such as a new head. Its metadata contain the factor on the product, the head, and a fingerprint of all other weights, so that
it cannot be merged into another model.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from heddle.config.model import HeadConfig, TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.lora import A, B, is_adapter
from heddle.weights.tensors import Weights, check_finite, save_tensors

METADATA = "heddle"  # the key in a file's metadata


@displayed(".layers(), .tensors")
@dataclass(frozen=True)
class Adapter:
    """The trained adapters of a model, and other weights that were trained with them.

    Attributes:
        tensors: the factors of each layer, `LAYER.lora_a` [r D] and `LAYER.lora_b` [F r], and other weights by name.
        factor: the factor on each product B A, such as alpha / rank.
        base: the fingerprint of all weights that are not in the adapter; None if unknown.
        head: the config of the head, if the adapter contains its weights.
    """

    tensors: Mapping[str, Tensor]
    factor: float
    base: str | None = None
    head: Any = None

    def layers(self) -> list[str]:
        """The names of the layers that have an adapter."""
        return [name.removesuffix(f".{A}") for name in self.tensors if name.endswith(f".{A}")]

    def others(self) -> dict[str, Tensor]:
        """The weights that were trained in full."""
        return {name: tensor for name, tensor in self.tensors.items() if not is_adapter(name)}

    def ranks(self) -> set[int]:
        """The ranks of its layers."""
        return {len(self.tensors[f"{layer}.{A}"]) for layer in self.layers()}

    def metadata(self) -> dict[str, Any]:
        """The metadata of its file."""
        head = None if self.head is None else self.head.to_dict()
        return {"factor": self.factor, "base": self.base, "head": head}

    def save(self, file: str | Path) -> None:
        """Write it as a safetensors file for `heddle adapter merge`. Not atomic; an existing file is replaced."""
        # A single key: the order of several keys is random, and equal adapters must be equal files.
        save_tensors(Path(file), self.tensors, {METADATA: json.dumps(self.metadata())})

    def config_of(self, base: TransformerConfig) -> TransformerConfig:
        """The config of a model with this adapter."""
        return base if self.head is None else base.model_copy(update={"head": self.head})

    @torch.no_grad()
    def merged(self, weights: Mapping[str, Tensor], names: set[str], where: str) -> dict[str, Tensor]:
        """The weights of a model with each product added to the weight of its layer.

        Args:
            weights: the fp32 weights of the base by name, which do not change.
            names: the names of weights in the model with the adapter.
            where: the name of the adapter in errors.

        Raises:
            HeddleError: the adapter belongs to another model, since a name, a shape or the fingerprint differs.
        """
        others = self.others()
        unchanged = {name: weights[name] for name in sorted(names - set(others)) if name in weights}
        missing = sorted(names - set(others) - set(unchanged)) + sorted(set(others) - names)
        missing += [f"{layer}.weight" for layer in self.layers() if f"{layer}.weight" not in names]
        if missing:
            raise HeddleError(f"{where} belongs to another model: only one of them has {missing[0]}; name its own base")
        for name, tensor in self.tensors.items():
            check_finite(name, tensor, Path(where))
        for layer in self.layers():
            a, b, weight = (
                self.tensors[f"{layer}.{A}"],
                self.tensors[f"{layer}.{B}"],
                {**unchanged, **others}[f"{layer}.weight"],
            )
            if a.dim() != 2 or b.dim() != 2 or len(a) != b.shape[1] or (len(b), a.shape[1]) != tuple(weight.shape):
                raise HeddleError(
                    f"{where} belongs to another model: its factors for {layer} are {list(b.shape)} and {list(a.shape)}, "
                    f"the layer's weight is {list(weight.shape)}; name its own base"
                )
        for name in others.keys() & weights.keys():
            if self.head is None and others[name].shape != weights[name].shape:
                shapes = f"{list(others[name].shape)}, not {list(weights[name].shape)}"
                raise HeddleError(f"{where} belongs to another model: its {name} is {shapes}; name its own base")
        if self.base is not None and fingerprint(unchanged) != self.base:
            raise HeddleError(
                f"{where} was trained on other weights: their values differ, or it has rows for added tokens; "
                "name its own base, and the run that trained it"
            )
        merged_weights = {**unchanged, **others}
        for layer in self.layers():
            a, b = (self.tensors[f"{layer}.{each}"].float() for each in (A, B))
            merged_weights[f"{layer}.weight"] = torch.addmm(merged_weights[f"{layer}.weight"], b, a, alpha=self.factor)
        return merged_weights


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, shapes and fp32 values of weights, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_adapter(file: Path) -> Adapter:
    """Read an adapter that `Adapter.save` wrote.

    Raises:
        HeddleError: the file is missing or damaged, or heddle did not save it.
    """
    weights = Weights([file])
    adapter = from_metadata(weights)
    if adapter is None:
        raise HeddleError(f"{file}: not an adapter that heddle saved, since it has no metadata of heddle")
    for name in filter(is_adapter, weights):
        layer, _, factor = name.rpartition(".")
        other = f"{layer}.{B if factor == A else A}"
        if other not in weights:
            raise HeddleError(f"{file}: {name} without {other}; it is damaged")
    return replace(adapter, tensors=dict(weights))


def from_metadata(weights: Weights) -> Adapter | None:
    """The adapter that a file's metadata describe, without its tensors; None if heddle did not write them."""
    try:
        fields = json.loads(weights.metadata[METADATA])
        head = None if fields["head"] is None else TypeAdapter(HeadConfig).validate_python(fields["head"])
        return Adapter({}, float(fields["factor"]), fields["base"], head)
    except (KeyError, ValueError, TypeError):
        return None
