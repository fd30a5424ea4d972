"""Gemma 3 (Gemma Team 2025), text only, in Hugging Face's format: a Gemma 2 with QK norm and separate rotary positions in local and
global layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import gemma2, layers
from heddle.convert.families.family import one_block, read_fields, without
from heddle.convert.mapping import TensorRow

ARCHITECTURE = "Gemma3ForCausalLM"
GLOBAL, LOCAL, PERIOD = 1_000_000.0, 10_000.0, 6
DEFAULTS: dict[str, Any] = {
    **without(gemma2.DEFAULTS, "attn_logit_softcapping", "hidden_act"),
    "vocab_size": 262208, "max_position_embeddings": 131072, "final_logit_softcapping": None,
    "rope_local_base_freq": None, "sliding_window_pattern": PERIOD,
}  # fmt: skip
# Hugging Face transformers has a field for softcapping attention, but does not read it.
FIXED = {**gemma2.FIXED, "attn_logit_softcapping": None}
IDLE = (*gemma2.IDLE, "_sliding_window_pattern")

LAYER, BLOCK = gemma2.LAYER, gemma2.BLOCK
TABLE = (
    *gemma2.TABLE,
    TensorRow(LAYER + "self_attn.q_norm.weight", (BLOCK + "mixer.q_norm.weight",), shift=1.0),
    TensorRow(LAYER + "self_attn.k_norm.weight", (BLOCK + "mixer.k_norm.weight",), shift=1.0),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Gemma 3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
    global_rotary, local = layers.read_rotaries(f, ("rope_theta", GLOBAL), ("rope_local_base_freq", LOCAL))
    flat = {**f, "rope_theta": None, "rope_parameters": None, "rope_scaling": None, "attn_logit_softcapping": None}
    data = gemma2.config_data(flat)
    stack = data["decoder"]
    stack["block"]["mixer"] |= {"qk_norm": {"kind": "rms", "eps": f["rms_norm_eps"]}}
    period = layers.period(f["sliding_window_pattern"], "sliding_window_pattern")
    default_local = [number for number in layers.numbers(stack["depth"]) if (number + 1) % period]
    places = layers.local_layers(f["layer_types"], stack["depth"], default_local)
    layers.set_local_and_global(stack, places, f["sliding_window"], global_rotary, local)
    return TransformerConfig.of(data, where="Gemma 3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Gemma 3 `config.json`."""
    width = one_block(config).mixer.width(config.dim)
    rotaries = layers.rotary_fields(config.stacks()["decoder"], width, GLOBAL, LOCAL)
    return {
        **without(gemma2.from_config(config), "attn_logit_softcapping"),
        "rope_theta": rotaries[layers.FULL]["rope_theta"],
        "rope_local_base_freq": rotaries[layers.LOCAL]["rope_theta"],
        "rope_scaling": rotaries[layers.FULL]["rope_scaling"],
        "rope_parameters": {name: each["rope_parameters"] for name, each in rotaries.items()},
    }


GEMMA3 = replace(
    gemma2.GEMMA2,
    name="gemma3_text",
    architecture=ARCHITECTURE,
    bare="Gemma3TextModel",
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
)
