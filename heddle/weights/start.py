"""The weights that a run starts from if it continues what another model learned: kept in its own directory."""

from pathlib import Path

import torch

from heddle.errors import HeddleError
from heddle.model.lora import is_adapter
from heddle.model.transformer import Transformer
from heddle.weights.files import sha256_of
from heddle.weights.tensors import compare, read_tensors, save_tensors, specs_of

START = "start.safetensors"
HEAD = "head."


def is_head(name: str) -> bool:
    """Whether a weight is the head's."""
    return name.startswith(HEAD)


def save_start(model: Transformer, path: Path) -> str:
    """Write a model's weights as a safetensors file; returns its SHA-256."""
    save_tensors(path, model.state_dict())
    return sha256_of(path)


@torch.no_grad()
def load_start(model: Transformer, path: Path, sha256: str) -> bool:
    """Load the weights that `save_start` wrote; returns whether the head's fit. Another head, and adapters, are left as they are.

    Raises:
        HeddleError: the file is missing or differs from the one that was written, or the model below the head is another one.
    """
    if not path.is_file():
        raise HeddleError(f"{path}: missing; without it the run cannot start. Train a new run")
    if sha256_of(path) != sha256:
        raise HeddleError(f"{path}: damaged, it is not the file that this run started from; train a new run")
    found, state = read_tensors(path), {n: each for n, each in model.state_dict().items() if not is_adapter(n)}
    new, there = set(filter(is_head, state)), set(filter(is_head, found))
    fits = new == there and all(found[name].shape == state[name].shape for name in new)
    kept, wanted = (
        {name: tensor for name, tensor in tensors.items() if fits or not is_head(name)} for tensors in (found, state)
    )
    compare(specs_of(kept), specs_of(wanted), path)
    for name, tensor in wanted.items():
        tensor.copy_(kept[name])
    return fits
