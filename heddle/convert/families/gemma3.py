"""Gemma 3 (Gemma Team 2025) in Hugging Face's format, for text: a Gemma 2 with norms on queries and keys, whose local and
global layers have rotary positions of their own."""

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
# Hugging Face transformers has a field for a cap on attention's scores, but does not read it.
FIXED = {**gemma2.FIXED, "attn_logit_softcapping": None}
IDLE = (*gemma2.IDLE, "_sliding_window_pattern")

THEIRS, OURS = gemma2.THEIRS, gemma2.OURS
TABLE = (
    *gemma2.TABLE,
    TensorRow(THEIRS + "self_attn.q_norm.weight", (OURS + "mixer.q_norm.weight",), shift=1.0),
    TensorRow(THEIRS + "self_attn.k_norm.weight", (OURS + "mixer.k_norm.weight",), shift=1.0),
)


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Gemma 3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
    whole, local = layers.two_rotaries(f, ("rope_theta", GLOBAL), ("rope_local_base_freq", LOCAL))
    flat = {**f, "rope_theta": None, "rope_parameters": None, "rope_scaling": None, "attn_logit_softcapping": None}
    data = gemma2.described(flat)
    stack = data["decoder"]
    stack["block"]["mixer"] |= {"qk_norm": {"kind": "rms", "eps": f["rms_norm_eps"]}}
    period = layers.period(f["sliding_window_pattern"], "sliding_window_pattern")
    usual = [number for number in layers.numbers(stack["depth"]) if (number + 1) % period]
    places = layers.said_local(f["layer_types"], stack["depth"], usual)
    layers.local_and_global(stack, places, f["sliding_window"], whole, local)
    return TransformerConfig.of(data, where="Gemma 3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Gemma 3 `config.json`."""
    width = one_block(config).mixer.width(config.dim)
    said = layers.written_rotaries(config.stacks()["decoder"], width, GLOBAL, LOCAL)
    return {
        **without(gemma2.from_config(config), "attn_logit_softcapping"),
        "rope_theta": said[layers.WHOLE]["rope_theta"],
        "rope_local_base_freq": said[layers.LOCAL]["rope_theta"],
        "rope_scaling": said[layers.WHOLE]["rope_scaling"],
        "rope_parameters": {name: each["rope_parameters"] for name, each in said.items()},
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
