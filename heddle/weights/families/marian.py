"""Marian (Junczys-Dowmunt et al. 2018) in Hugging Face's format: Vaswani's Transformer, all sines before all cosines."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.families import bart
from heddle.weights.families.family import read_fields

ARCHITECTURE = "MarianMTModel"
DEFAULTS: dict[str, Any] = {
    **bart.DEFAULTS,
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "share_encoder_decoder_embeddings": True,
}
FIXED = {
    **bart.FIXED, "normalize_embedding": False, "static_position_embeddings": True,
}  # fmt: skip


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Marian `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, ARCHITECTURE, DEFAULTS, FIXED, idle=bart.IDLE)
    source, target = f["vocab_size"], f["vocab_size"] if f["decoder_vocab_size"] is None else f["decoder_vocab_size"]
    shared = f["share_encoder_decoder_embeddings"]
    if shared and source != target:
        raise HeddleError(
            f"decoder_vocab_size = {target!r} in config.json, but share_encoder_decoder_embeddings means one table of "
            f"vocab_size = {source!r}"
        )
    data = bart.described(f, {"positions": "sinusoidal_halves"})
    if not shared:
        data |= {"vocab_size": target, "source_vocab_size": source}
    return TransformerConfig.of(data, where="Marian's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Marian `config.json`."""
    return {
        **bart.from_config(config),
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": bart.one_table(config),
    }


MARIAN = replace(
    bart.BART,
    name="marian",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    ids={"eos_token_id": 0, "pad_token_id": 58100, "decoder_start_token_id": 58100, "forced_eos_token_id": 0},
    table=(replace(bart.SHARED_TABLE, when=bart.one_table), *bart.SHARED),
    names=replace(
        bart.NAMES,
        # Sines and cosines, which older files hold, and a table that no layer reads if there are two.
        ignorable=(
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
            "model.shared.weight",
        ),
    ),
)
