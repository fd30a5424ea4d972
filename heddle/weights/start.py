"""The initial weights of a run that continues from another model, saved in its own directory."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from heddle.checks import at_least, checked, wrong
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.lora import is_adapter
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import sha256_of
from heddle.weights.tensors import Spec, Weights, compare, save_tensors, specs_of

START = "start.safetensors"
HEAD = "head."
TABLES = ("embedding.weight", "head.weight", "head.bias")  # the tensors with a row per id


def is_head(name: str) -> bool:
    """Whether a weight is the head's."""
    return name.startswith(HEAD)


def save_start(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write a model's weights as a safetensors file, and return its SHA-256."""
    save_tensors(path, tensors)
    return sha256_of(path)


@checked(known=at_least(1))
def add_tokens(model: Transformer, tokenizer: Tokenizer, known: int) -> Transformer:
    """The model with rows for the new ids of a tokenizer. Their vectors are the mean of the others (Hewitt 2021).

    Args:
        model: a model with one token table, which does not change.
        tokenizer: the tokenizer, with the new ids.
        known: the number of ids that it had before.

    Raises:
        HeddleError: the model has two token tables, or fewer than `known` ids.
    """
    config = model.config
    if known > config.vocab_size:
        raise wrong("add_tokens", "known", known, f"at most the model's vocab_size = {config.vocab_size}")
    if config.source_vocab_size is not None:
        raise HeddleError("add_tokens: model: must have a single token table, not a second one for its source")
    extended = build(config.override({"vocab_size": max(config.vocab_size, tokenizer.vocab_size)}), model.device)
    extended.load_state_dict(grown(model.state_dict(), extended.state_dict(), known, tokenizer.vocab_size))
    return extended.eval()


def grown(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], old_count: int, new_count: int
) -> dict[str, Tensor]:
    """Weights with rows for the ids from `old_count` to `new_count`, which are the mean of the trained rows of each table.

    Args:
        weights: the weights by name.
        expected: the weights of the extended model, for their shapes.
        old_count: the number of ids with trained rows.
        new_count: the number of all ids.
    """
    tensors = dict(weights)
    for name in (name for name in TABLES if new_count > old_count and name in weights and name in expected):
        table = weights[name]
        tensors[name] = table.new_zeros(expected[name].shape)
        tensors[name][: len(table)] = table
        tensors[name][old_count:new_count] = table[:old_count].mean(0)
    return tensors


def cut_tensors(tensors: Mapping[str, Tensor], model: TransformerConfig) -> dict[str, Tensor]:
    """The weights of a model's first layers and positions (`heddle.config.cut`).

    Args:
        tensors: the weights of the full model by name.
        model: the config of the cut model.
    """
    cut = dict(tensors)
    cut_model = build(model, "meta")
    for name, stack in model.stacks().items():
        cut_stack: Stack = getattr(cut_model, name)
        for part, length in (("blocks", stack.depth), ("relative", len(cut_stack.relative))):
            start = f"{name}.{part}."
            for key in [key for key in cut if key.startswith(start)]:
                if int(key.removeprefix(start).split(".")[0]) >= length:
                    del cut[key]
        positions = f"{name}.entry.positions.weight"
        if positions in cut:
            cut[positions] = cut[positions][: model.context + stack.entry.offset].clone()
    return cut


def open_start(path: Path, sha256: str) -> Weights:
    """The weights that `save_start` wrote, each read on access.

    Raises:
        HeddleError: the file is missing or has another checksum.
    """
    if not path.is_file():
        raise HeddleError(f"{path}: missing; without it the run cannot start. Train a new run")
    if sha256_of(path) != sha256:
        raise HeddleError(f"{path}: damaged, it is not the file that this run started from; train a new run")
    return Weights([path])


@torch.no_grad()
def load_start(model: Transformer, path: Path, sha256: str) -> None:
    """Load the weights that `save_start` wrote. A different head, and adapters, do not change.

    Raises:
        HeddleError: the file is missing or has another checksum, or the model differs below its head.
    """
    weights, state = open_start(path, sha256), model.state_dict()
    for name in fitting(weights.specs, specs_of(state), path):
        state[name].copy_(weights[name])


@torch.no_grad()
def adopt(model: Transformer, weights: Mapping[str, Tensor], where: Path) -> None:
    """Load weights into a model. A different head, and adapters, do not change.

    Args:
        model: the model.
        weights: the weights by name.
        where: their file or run, for errors.

    Raises:
        HeddleError: the model differs below its head.
    """
    state = model.state_dict()
    for name in fitting(specs_of(weights), specs_of(state), where):
        state[name].copy_(weights[name])


def head_fits(weights: Mapping[str, Spec], model: Mapping[str, Spec]) -> bool:
    """Whether a model has the head of these weights, with the same shapes."""
    heads = [{name: spec.shape for name, spec in specs.items() if is_head(name)} for specs in (weights, model)]
    return heads[0] == heads[1]


def fitting(weights: Mapping[str, Spec], model: Mapping[str, Spec], where: Path) -> list[str]:
    """The names of weights that a model takes: all, or all but those of a head that differs. Its adapters are its own.

    Raises:
        HeddleError: the model differs below its head.
    """
    fits, own = head_fits(weights, model), {name: spec for name, spec in model.items() if not is_adapter(name)}
    taken, needed = (
        {name: spec for name, spec in specs.items() if fits or not is_head(name)} for specs in (weights, own)
    )
    compare(taken, needed, where)
    return list(needed)
