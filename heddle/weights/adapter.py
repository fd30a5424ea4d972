"""What a fine-tuning with adapters learned, apart from the weights that it started from: one small file.

`adapter.safetensors` holds each layer's two factors, `LAYER.lora_a` [r D] and `LAYER.lora_b` [F r], and in full whatever else was
trained, such as a new head. Its metadata say the factor on the product, the head, and a fingerprint of all other weights, so that
it is added to no model but its own.
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

METADATA = "heddle"  # the key of a file's metadata


@displayed(".layers(), .tensors")
@dataclass(frozen=True)
class Adapter:
    """What adapters add to a model's weights, and the other weights that were trained beside them.

    Attributes:
        tensors: the factors of each layer, `LAYER.lora_a` [r D] and `LAYER.lora_b` [F r], and other weights by name.
        factor: on each product B A, such as alpha / rank.
        base: the fingerprint of all weights that the adapter does not bring; None if it is not known.
        head: the model's head, if the adapter brings its weights.
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

    def said(self) -> dict[str, Any]:
        """What its metadata say."""
        head = None if self.head is None else self.head.to_dict()
        return {"factor": self.factor, "base": self.base, "head": head}

    def save(self, file: str | Path) -> None:
        """Write it as a safetensors file, which `heddle adapter merge` reads. Not atomic, and an existing file is replaced."""
        # A second key would come before or after this one by chance, and equal adapters are equal files.
        save_tensors(Path(file), self.tensors, {METADATA: json.dumps(self.said())})

    def config_of(self, base: TransformerConfig) -> TransformerConfig:
        """The config of a model with this adapter."""
        return base if self.head is None else base.model_copy(update={"head": self.head})

    @torch.no_grad()
    def merged(self, weights: Mapping[str, Tensor], names: set[str], where: str) -> dict[str, Tensor]:
        """The weights of a model with this adapter, each product added to its layer's weight.

        Args:
            weights: fp32 weights of the base by name, which stay as they are.
            names: of the model with the adapter.
            where: the adapter's name in errors.

        Raises:
            HeddleError: the adapter belongs to another model: a name, a shape or the fingerprint differs.
        """
        others = self.others()
        rest = {name: weights[name] for name in sorted(names - set(others)) if name in weights}
        missing = sorted(names - set(others) - set(rest)) + sorted(set(others) - names)
        missing += [f"{layer}.weight" for layer in self.layers() if f"{layer}.weight" not in names]
        if missing:
            raise HeddleError(
                f"{where} belongs to another model: {missing[0]} is only in one of them; name its own base"
            )
        for name, tensor in self.tensors.items():
            check_finite(name, tensor, Path(where))
        for layer in self.layers():
            a, b, weight = (
                self.tensors[f"{layer}.{A}"],
                self.tensors[f"{layer}.{B}"],
                {**rest, **others}[f"{layer}.weight"],
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
        if self.base is not None and fingerprint(rest) != self.base:
            raise HeddleError(
                f"{where} was trained beside other weights than these: their values differ, or it has rows for tokens that were "
                "added; name its own base, and the run that trained it"
            )
        found = {**rest, **others}
        for layer in self.layers():
            a, b = (self.tensors[f"{layer}.{each}"].float() for each in (A, B))
            found[f"{layer}.weight"] = torch.addmm(found[f"{layer}.weight"], b, a, alpha=self.factor)
        return found


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of weights: names, shapes and fp32 values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_adapter(file: Path) -> Adapter:
    """Read what `Adapter.save` wrote.

    Raises:
        HeddleError: the file is missing or damaged, or is not an adapter that heddle saved.
    """
    weights = Weights([file])
    found = from_metadata(weights)
    if found is None:
        raise HeddleError(f"{file}: not an adapter that heddle saved, its metadata do not say what it belongs to")
    for name in filter(is_adapter, weights):
        layer, _, each = name.rpartition(".")
        other = f"{layer}.{B if each == A else A}"
        if other not in weights:
            raise HeddleError(f"{file}: {name} without {other}; it is damaged")
    return replace(found, tensors=dict(weights))


def from_metadata(weights: Weights) -> Adapter | None:
    """What a file's metadata say of the adapter in it, still without its tensors; None if heddle did not write them."""
    try:
        said = json.loads(weights.metadata[METADATA])
        head = None if said["head"] is None else TypeAdapter(HeadConfig).validate_python(said["head"])
        return Adapter({}, float(said["factor"]), said["base"], head)
    except (KeyError, ValueError, TypeError):
        return None
