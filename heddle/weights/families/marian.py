"""Marian (Junczys-Dowmunt et al. 2018) as transformers publishes it: Vaswani's Transformer, all sines before all cosines."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.families import bart
from heddle.weights.families.family import read_fields
from heddle.weights.mapping import Names

ARCHITECTURE = "MarianMTModel"
DEFAULTS: dict[str, Any] = {**bart.DEFAULTS, "vocab_size": 58101, "decoder_vocab_size": None}
FIXED = {
    **bart.FIXED, "share_encoder_decoder_embeddings": True, "normalize_embedding": False,
    "static_position_embeddings": True,
}  # fmt: skip


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Marian `config.json` as a heddle config.

    Raises:
        HeddleError: it asks for something that heddle does not compute, or its sizes are impossible.
    """
    f = read_fields({name: found[name] for name in found if name not in bart.IDLE}, ARCHITECTURE, DEFAULTS, FIXED)
    if f["decoder_vocab_size"] not in (None, f["vocab_size"]):
        raise HeddleError(
            f"decoder_vocab_size = {f['decoder_vocab_size']!r} in config.json: heddle takes over one table for both"
        )
    data = bart.described(f, {"positions": "sinusoidal_halves"})
    return TransformerConfig.of(data, where="Marian's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Marian `config.json`."""
    return {
        **bart.from_config(config),
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": True,
    }


MARIAN = replace(
    bart.BART,
    name="marian",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=bart.SHARED,
    names=Names(
        prefix="model.",
        # The sines and cosines, which older files keep.
        ignorable=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
        copies=bart.COPIES,
    ),
)
