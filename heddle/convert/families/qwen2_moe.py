"""Qwen2-MoE (Yang et al. 2024) in Hugging Face's format: routed experts, and a shared one with a sigmoid gate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, qwen3, qwen3_moe, rotary
from heddle.convert.families.family import Tensors, one_block, read_fields, without
from heddle.convert.mapping import TensorRow

ARCHITECTURE = "Qwen2MoeForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(qwen3_moe.DEFAULTS, "attention_bias"), **qwen3.WINDOWS,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "qkv_bias": True,
}  # fmt: skip

MLP, FFN = qwen3_moe.MLP, qwen3_moe.FFN
TABLE = (
    *llama.TABLE,
    *qwen3_moe.EXPERT_ROWS,
    TensorRow(MLP + "shared_expert.gate_proj.weight", (FFN + "shared.gate.weight",)),
    TensorRow(MLP + "shared_expert.up_proj.weight", (FFN + "shared.up.weight",)),
    TensorRow(MLP + "shared_expert.down_proj.weight", (FFN + "shared.down.weight",)),
    TensorRow(MLP + "shared_expert_gate.weight", (FFN + "shared_gate.weight",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen2-MoE `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    data = llama.config_data({**f, "attention_bias": False, "mlp_bias": False})
    stack = data["decoder"]
    stack["block"]["mixer"]["bias"] = ["q", "k", "v"] if f["qkv_bias"] else False
    shared = {"shared": 1, "shared_hidden": f["shared_expert_intermediate_size"], "shared_gate": True}
    qwen3_moe.add_experts(data, f, 60, **shared)
    # Without `layer_types`, Hugging Face transformers gives every second layer below `max_window_layers` a window.
    layers.set_qwen_windows(stack, f, lambda number: number % 2 == 0 and number < f["max_window_layers"])
    return TransformerConfig.of(data, where="Qwen2-MoE's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen2-MoE `config.json`."""
    stack = config.stacks()["decoder"]
    moe = next((block.ffn for block in stack.blocks if isinstance(block.ffn, MoEConfig)), None)
    return {
        **without(qwen3_moe.published_fields(config), "attention_bias"),
        **layers.qwen_window_fields(stack),
        "qkv_bias": "q" in one_block(config).mixer.biased(),
        "shared_expert_intermediate_size": max(moe.shared, 1) * moe.shared_width(config.dim) if moe else config.dim,
    }


def gated(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """An equivalent model with gated shared experts: doubled, with a gate that is always 1/2, since 2 · sigmoid(0) = 1."""
    stack = config.decoder
    feeds = [] if stack is None else [block.ffn for block in stack.blocks]
    ungated = [i for i, ffn in enumerate(feeds) if isinstance(ffn, MoEConfig) and ffn.shared and not ffn.shared_gate]
    if stack is None or not ungated:
        return config, tensors
    rewritten = dict(tensors)
    for name in (f"decoder.blocks.{i}.ffn.shared.down.weight" for i in ungated):
        if name in tensors:  # absent when only the config is rewritten
            rewritten[name] = 2 * tensors[name]
            rewritten[name.replace("shared.down", "shared_gate")] = tensors[name].new_zeros(1, config.dim)
    overrides = [*stack.to_dict()["overrides"], *layers.overrides(ungated, stack.depth, {"ffn": {"shared_gate": True}})]
    return config.override({"decoder.overrides": overrides}), rewritten


QWEN2_MOE = replace(
    llama.LLAMA,
    name="qwen2_moe",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2, shared=1), GatedConfig())),
    ids={},
    rewrite=gated,
)
