"""Qwen3 (Yang et al. 2025) as transformers publishes it: a Llama whose queries and keys are normed head by head."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.families import llama
from heddle.weights.families.family import read_fields
from heddle.weights.mapping import Row

ARCHITECTURE = "Qwen3ForCausalLM"
DEFAULTS: dict[str, Any] = {
    **{name: value for name, value in llama.DEFAULTS.items() if name != "mlp_bias"},
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
    "max_position_embeddings": 32768, "layer_types": None,
}  # fmt: skip
# Without sliding windows the two other fields about them say nothing.
FIXED = {**llama.FIXED, "use_sliding_window": False}
IDLE = ("sliding_window", "max_window_layers")

TABLE = (
    *llama.TABLE,
    Row(llama.THEIRS + "self_attn.q_norm.weight", (llama.OURS + "mixer.q_norm.weight",)),
    Row(llama.THEIRS + "self_attn.k_norm.weight", (llama.OURS + "mixer.k_norm.weight",)),
)


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen3 `config.json` as a heddle config.

    Raises:
        HeddleError: it asks for something that heddle does not compute, or its sizes are impossible.
    """
    f = read_fields({name: found[name] for name in found if name not in IDLE}, ARCHITECTURE, DEFAULTS, FIXED)
    other = set(f["layer_types"] or ()) - {"full_attention"}
    if other:
        raise HeddleError(
            f"layer_types in config.json names {', '.join(sorted(other))}: heddle has only full_attention"
        )
    data = llama.described({**f, "mlp_bias": False})
    data["decoder"]["block"]["mixer"]["qk_norm"] = {"kind": "rms", "eps": f["rms_norm_eps"]}
    return TransformerConfig.of(data, where="Qwen3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen3 `config.json`."""
    return {name: value for name, value in llama.from_config(config).items() if name != "mlp_bias"}


QWEN3 = replace(
    llama.LLAMA, name="qwen3", architecture=ARCHITECTURE, to_config=to_config, from_config=from_config, table=TABLE
)
