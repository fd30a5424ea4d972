"""The weights that a run starts from if it continues what another model learned: kept in its own directory."""

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
from heddle.weights.tensors import compare, read_tensors, save_tensors, specs_of

START = "start.safetensors"
HEAD = "head."
TABLES = ("embedding.weight", "head.weight", "head.bias")  # what has a row per id


def is_head(name: str) -> bool:
    """Whether a weight is the head's."""
    return name.startswith(HEAD)


def save_start(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write a model's weights as a safetensors file; returns its SHA-256."""
    save_tensors(path, tensors)
    return sha256_of(path)


@checked(known=at_least(1))
def add_tokens(model: Transformer, tokenizer: Tokenizer, known: int) -> Transformer:
    """The model with a row for each id of a tokenizer that got new ones; their vectors are the mean of the others' (Hewitt 2021).

    Args:
        model: a model with one table of tokens; it stays as it is.
        tokenizer: the tokenizer, with the new ids.
        known: how many ids it had before.

    Raises:
        HeddleError: the model has two tables, or fewer ids than are known.
    """
    config = model.config
    if known > config.vocab_size:
        raise wrong("add_tokens", "known", known, f"at most the model's vocab_size = {config.vocab_size}")
    if config.source_vocab_size is not None:
        raise HeddleError("add_tokens: model: must have one table of tokens, not one for its source")
    made = build(config.override({"vocab_size": max(config.vocab_size, tokenizer.vocab_size)}), model.device)
    made.load_state_dict(grown(model.state_dict(), made.state_dict(), known, tokenizer.vocab_size))
    return made.eval()


def grown(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], known: int, count: int) -> dict[str, Tensor]:
    """Weights with rows for the ids from `known` to `count`: the mean of those before, in each table with a row per id.

    Args:
        found: the weights by name.
        wanted: those of the same model with as many ids, for their shapes.
        known: ids that have learned rows.
        count: all ids.
    """
    tensors = dict(found)
    for name in (name for name in TABLES if count > known and name in found and name in wanted):
        table = found[name]
        tensors[name] = table.new_zeros(wanted[name].shape)
        tensors[name][: len(table)] = table
        tensors[name][known:count] = table[:known].mean(0)
    return tensors


def cut_tensors(tensors: Mapping[str, Tensor], model: TransformerConfig) -> dict[str, Tensor]:
    """The weights of a model's first layers and positions (`heddle.config.cut`).

    Args:
        tensors: the weights of the whole model by name.
        model: what is left of it.
    """
    found = dict(tensors)
    built = build(model, "meta")
    for name, stack in model.stacks().items():
        made: Stack = getattr(built, name)
        for part, most in (("blocks", stack.depth), ("relative", len(made.relative))):
            start = f"{name}.{part}."
            for key in [key for key in found if key.startswith(start)]:
                if int(key.removeprefix(start).split(".")[0]) >= most:
                    del found[key]
        places = f"{name}.entry.positions.weight"
        if places in found:
            found[places] = found[places][: model.context + stack.entry.offset].clone()
    return found


def load_start(model: Transformer, path: Path, sha256: str) -> bool:
    """Load the weights that `save_start` wrote; returns whether the head's fit. Another head, and adapters, are left as they are.

    Raises:
        HeddleError: the file is missing or differs from the one that was written, or the model below the head is another one.
    """
    if not path.is_file():
        raise HeddleError(f"{path}: missing; without it the run cannot start. Train a new run")
    if sha256_of(path) != sha256:
        raise HeddleError(f"{path}: damaged, it is not the file that this run started from; train a new run")
    return adopt(model, read_tensors(path), path)


@torch.no_grad()
def adopt(model: Transformer, found: Mapping[str, Tensor], where: Path) -> bool:
    """Give a model these weights; returns whether the head's fit. Another head, and adapters, are left as they are.

    Args:
        model: the model.
        found: the weights by name.
        where: the file or the run that they come from, in errors.

    Raises:
        HeddleError: the model below the head is another one.
    """
    state = {name: each for name, each in model.state_dict().items() if not is_adapter(name)}
    new, there = set(filter(is_head, state)), set(filter(is_head, found))
    fits = new == there and all(found[name].shape == state[name].shape for name in new)
    kept, wanted = (
        {name: tensor for name, tensor in tensors.items() if fits or not is_head(name)} for tensors in (found, state)
    )
    compare(specs_of(kept), specs_of(wanted), where)
    for name, tensor in wanted.items():
        tensor.copy_(kept[name])
    return fits
