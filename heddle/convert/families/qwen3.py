"""Qwen3 (Yang et al. 2025) in Hugging Face's format: a Llama with norms on the queries and keys of each head."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import read_fields, without
from heddle.convert.mapping import TensorRow

ARCHITECTURE = "Qwen3ForCausalLM"
# With `use_sliding_window`, `layer_types` lists the layers with a window; without it, those from `max_window_layers` on have one.
WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "mlp_bias"), **WINDOWS,
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
    "max_position_embeddings": 32768,
}  # fmt: skip

TABLE = (
    *llama.TABLE,
    TensorRow(llama.LAYER + "self_attn.q_norm.weight", (llama.BLOCK + "mixer.q_norm.weight",)),
    TensorRow(llama.LAYER + "self_attn.k_norm.weight", (llama.BLOCK + "mixer.k_norm.weight",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    data = llama.config_data({**f, "mlp_bias": False})
    data["decoder"]["block"]["mixer"]["qk_norm"] = {"kind": "rms", "eps": f["rms_norm_eps"]}
    layers.set_qwen_windows(data["decoder"], f, lambda number: number >= f["max_window_layers"])
    return TransformerConfig.of(data, where="Qwen3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen3 `config.json`."""
    return {**without(llama.from_config(config), "mlp_bias"), **layers.qwen_window_fields(config.stacks()["decoder"])}


QWEN3 = replace(
    llama.LLAMA,
    name="qwen3",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    ids={},
)
