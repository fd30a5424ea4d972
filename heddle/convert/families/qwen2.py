"""Qwen2 and Qwen2.5 (Yang et al. 2024) in Hugging Face's format: a Llama whose queries, keys and values have biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, qwen3, rotary
from heddle.convert.families.family import read_fields, without

ARCHITECTURE = "Qwen2ForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(qwen3.DEFAULTS, "attention_bias"),
    "head_dim": None,
}  # fmt: skip


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    data = llama.config_data({**f, "attention_bias": False, "mlp_bias": False})
    data["decoder"]["block"]["mixer"]["bias"] = ["q", "k", "v"]
    layers.set_qwen_windows(data["decoder"], f, lambda number: number >= f["max_window_layers"])
    return TransformerConfig.of(data, where="Qwen2's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen2 `config.json`."""
    return without(qwen3.from_config(config), "attention_bias")


QWEN2 = replace(
    llama.LLAMA, name="qwen2", architecture=ARCHITECTURE, to_config=to_config, from_config=from_config, ids={}
)
