"""Presets, which are named models in data files, and `sized`, a model of any depth."""

import tomllib
from importlib import resources
from typing import Any

from heddle.checks import Limit, at_least, checked
from heddle.config.base import merge
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError, did_you_mean

STACKS = (("decoder",), ("encoder",), ("encoder", "decoder"))  # of the three families


def preset_names() -> list[str]:
    """The names of all presets, in alphabetical order."""
    folder = resources.files("heddle.config") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


@checked()
def preset(name: str) -> TransformerConfig:
    """The model that a preset describes.

    Raises:
        HeddleError: the preset does not exist; the error suggests the nearest one.
    """
    table = _table(name)
    table.pop("train", None)
    return TransformerConfig.of(table, where=f"preset {name}")


@checked()
def preset_training(name: str) -> dict[str, Any]:
    """A preset's training settings: `batch_tokens` per step and the peak `learning_rate`, or none (L1-72, L1-73).

    Raises:
        HeddleError: the preset does not exist.
    """
    return dict(_table(name).get("train", {}))


def _table(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise HeddleError(
            f"unknown preset {name!r}.{did_you_mean(name, preset_names())} `heddle presets` lists them all."
        )
    data = tomllib.loads((resources.files("heddle.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))
    like = data.pop("like", None)  # a preset may list only its differences from another
    return merge(_table(like), data) if like else data


@checked(
    depth=at_least(1),
    vocab_size=at_least(1),
    context=at_least(1),
    dim=at_least(1),
    stacks=Limit("encoder, decoder, or both in this order", lambda stacks: stacks in STACKS),
)
def sized(
    depth: int,
    *,
    vocab_size: int,
    context: int = 256,
    dim: int | None = None,
    stacks: tuple[str, ...] = ("decoder",),
) -> TransformerConfig:
    """A modern small GPT: width 64 x depth, heads of 64 channels, and everything else from these.

    With `stacks=("encoder",)`, the same blocks are bidirectional; with `("encoder", "decoder")`, each stack has `depth` of them,
    and the decoder's also attend to the encoder's output.

    RMSNorm before each branch, rotary positions, normed queries and keys, SwiGLU, no biases and a tied head: the choices
    that learned fastest at laptop size.
    """
    width = dim or 64 * depth
    head_dim = 64 if width % 64 == 0 else width
    norm = {"kind": "rms"}
    mixer = {
        "kind": "attention",
        "heads": width // head_dim,
        "bias": False,
        "qk_norm": norm,
        "relative": {"kind": "rotary"},
    }
    # Hidden width 8/3 of the width, as usual for gated layers, rounded finely enough for small models. Built from a table,
    # so that sizes out of range are one-line errors.
    block = {"mixer": mixer, "ffn": {"kind": "gated", "hidden": -(-8 * width // 192) * 64}, "norm": norm}
    sizes = {"vocab_size": vocab_size, "pad_vocab_to": 64, "dim": width, "context": context}
    cross = {"cross": {"heads": width // head_dim, "bias": False, "qk_norm": norm}} if len(stacks) > 1 else {}
    blocks = {"encoder": block, "decoder": {**block, **cross}}
    return TransformerConfig.of(
        {**sizes, **{name: {"depth": depth, "block": blocks[name]} for name in stacks}}, where="model"
    )
