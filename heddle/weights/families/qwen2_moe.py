"""Qwen2-MoE (Yang et al. 2024) as its files have it: routed experts, and a shared one behind a gate that is open to a degree."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import MoEConfig
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.families import llama, qwen3_moe
from heddle.weights.families.family import Tensors, one_block, read_fields
from heddle.weights.mapping import Row

ARCHITECTURE = "Qwen2MoeForCausalLM"
DEFAULTS: dict[str, Any] = {
    **{name: value for name, value in qwen3_moe.DEFAULTS.items() if name != "attention_bias"},
    "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "qkv_bias": True, "layer_types": None,
}  # fmt: skip

THEIRS, OURS = qwen3_moe.THEIRS, qwen3_moe.OURS
TABLE = (
    *(row for row in llama.TABLE if ".mlp." not in row.theirs),
    *qwen3_moe.EXPERT_ROWS,
    Row(THEIRS + "shared_expert.gate_proj.weight", (OURS + "shared.gate.weight",)),
    Row(THEIRS + "shared_expert.up_proj.weight", (OURS + "shared.up.weight",)),
    Row(THEIRS + "shared_expert.down_proj.weight", (OURS + "shared.down.weight",)),
    Row(THEIRS + "shared_expert_gate.weight", (OURS + "shared_gate.weight",)),
)


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen2-MoE `config.json` as a heddle config.

    Raises:
        HeddleError: it asks for something that heddle does not compute, or its sizes are impossible.
    """
    known = {name: found[name] for name in found if name not in qwen3_moe.IDLE}
    f = read_fields(known, ARCHITECTURE, DEFAULTS, qwen3_moe.FIXED)
    other = set(f["layer_types"] or ()) - {"full_attention"}
    if other:
        raise HeddleError(
            f"layer_types in config.json names {', '.join(sorted(other))}: heddle takes over none of it here"
        )
    data = llama.described({**f, "attention_bias": False, "mlp_bias": False, "intermediate_size": None})
    block = data["decoder"]["block"]
    block["mixer"]["bias"] = ["q", "k", "v"] if f["qkv_bias"] else False
    shared = {"shared": 1, "shared_hidden": f["shared_expert_intermediate_size"], "shared_gate": True}
    block["ffn"] = {**qwen3_moe.described(f, 60), **shared}
    return TransformerConfig.of(data, where="Qwen2-MoE's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen2-MoE `config.json`."""
    block = one_block(config)
    shared = {name: value for name, value in qwen3_moe.written(config).items() if name != "attention_bias"}
    return {
        **shared,
        "qkv_bias": "q" in block.mixer.biased(),
        "shared_expert_intermediate_size": max(block.ffn.shared, 1) * block.ffn.shared_width(config.dim),
    }


def gated(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """Shared experts without a gate are ones behind a gate that is always half open, and twice as strong: 2 · sigmoid(0) = 1."""
    ffn = one_block(config).ffn if "decoder" in config.stacks() else None
    if not isinstance(ffn, MoEConfig) or not ffn.shared or ffn.shared_gate:
        return config, tensors
    found = dict(tensors)
    for name, tensor in tensors.items():
        if re.fullmatch(r"decoder\.blocks\.\d+\.ffn\.shared\.down\.weight", name):
            found[name] = 2 * tensor
            found[name.replace("shared.down", "shared_gate")] = tensor.new_zeros(1, config.dim)
    return config.override({"decoder.block.ffn.shared_gate": True}), found


QWEN2_MOE = replace(
    llama.LLAMA,
    name="qwen2_moe",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    parts=replace(llama.PARTS, ffns=(MoEConfig(experts=2, shared=1),)),
    rewrite=gated,
)
