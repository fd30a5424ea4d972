"""Mistral (Jiang et al. 2023) in Hugging Face's format: a Llama without biases, with an optional window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import one_block, read_fields, without

ARCHITECTURE = "MistralForCausalLM"
BIASES = ("attention_bias", "mlp_bias")
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, *BIASES),
    "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Mistral `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    data = llama.config_data({**f, "attention_bias": False, "mlp_bias": False})
    data["decoder"]["block"]["mixer"]["window"] = f["sliding_window"]
    return TransformerConfig.of(data, where="Mistral's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Mistral `config.json`."""
    return {**without(llama.from_config(config), *BIASES), "sliding_window": one_block(config).mixer.window}


MISTRAL = replace(llama.LLAMA, name="mistral", architecture=ARCHITECTURE, to_config=to_config, from_config=from_config)
