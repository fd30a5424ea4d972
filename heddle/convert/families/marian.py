"""Marian (Junczys-Dowmunt et al. 2018) in Hugging Face's format: Vaswani's Transformer, with all sines before all cosines."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from heddle.config.model import TransformerConfig
from heddle.convert.families import bart
from heddle.convert.families.family import Tensors, read_fields
from heddle.errors import HeddleError

ARCHITECTURE = "MarianMTModel"
NEVER = -1e4  # a finite logit for an id without a probability
DEFAULTS: dict[str, Any] = {
    **bart.DEFAULTS,
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "share_encoder_decoder_embeddings": True,
}
FIXED = {
    **bart.FIXED, "normalize_embedding": False, "static_position_embeddings": True,
}  # fmt: skip


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Marian `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=bart.IDLE)
    source, target = f["vocab_size"], f["vocab_size"] if f["decoder_vocab_size"] is None else f["decoder_vocab_size"]
    shared = f["share_encoder_decoder_embeddings"]
    if shared and source != target:
        raise HeddleError(
            f"decoder_vocab_size = {target!r} in config.json, but share_encoder_decoder_embeddings means one table of "
            f"vocab_size = {source!r}"
        )
    data = bart.config_data(f, {"positions": "sinusoidal_halves"})
    if not shared:
        data |= {"vocab_size": target, "source_vocab_size": source}
    return TransformerConfig.of(data, where="Marian's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Marian `config.json`."""
    return {
        **bart.from_config(config),
        **FIXED,
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": bart.one_table(config),
    }


def start_from_zero(config: TransformerConfig, tensors: Tensors, start: int) -> tuple[TransformerConfig, Tensors]:
    """An equivalent Marian whose decoder starts with a zero vector, as in published models, which other readers rely on.

    The vector c that the decoder starts with is subtracted from its whole table. The first layer makes up for it: the biases of its
    queries, keys and values get W c, and the bias of the attention's output gets c, which restores the residual. A tied head lowers
    all logits at a position by the same number, which changes no probability.
    """
    count, rewritten = config.vocab_size, dict(tensors)
    start_vector = tensors["embedding.weight"][start]
    stacks = ("encoder", "decoder") if bart.one_table(config) else ("decoder",)
    for name in stacks:
        scaled = start_vector * (config.dim**0.5 if config.stacks()[name].entry.scale else 1.0)
        first = f"{name}.blocks.0.mixer."
        for part in "qkv":
            rewritten[f"{first}{part}.bias"] = (
                tensors[f"{first}{part}.bias"] + tensors[f"{first}{part}.weight"] @ scaled
            )
        rewritten[f"{first}o.bias"] = tensors[f"{first}o.bias"] + scaled
    for name in ("embedding.weight", "source_embedding.weight", "head.weight"):
        if name in tensors:
            table = tensors[name][:count]
            table = table - start_vector if name == "embedding.weight" else table
            rewritten[name] = torch.cat((table, table.new_zeros(1, config.dim)))
    bias = tensors["head.bias"][:count]
    rewritten["head.bias"] = torch.cat((bias, bias.new_full((1,), NEVER)))
    sizes = {"vocab_size": count + 1, "pad_vocab_to": 1}
    more = {} if bart.one_table(config) else {"source_vocab_size": count + 1}
    return config.override({**sizes, **more}), rewritten


MARIAN = replace(
    bart.BART,
    name="marian",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    start_from_zero=start_from_zero,
    ids={"eos_token_id": 0, "pad_token_id": 58100, "decoder_start_token_id": 58100, "forced_eos_token_id": 0},
    table=(replace(bart.SHARED_TABLE, when=bart.one_table), *bart.SHARED),
    names=replace(
        bart.NAMES,
        # Older files contain sines and cosines. The shared table is not read if there are two tables.
        ignorable=(
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
            "model.shared.weight",
        ),
    ),
)
