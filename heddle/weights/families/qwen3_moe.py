"""Qwen3-MoE (Yang et al. 2025) as its files have it: Qwen3's block with experts, each a tensor of its own on the disk."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import MoEConfig
from heddle.config.model import TransformerConfig
from heddle.weights.families import llama, qwen3
from heddle.weights.families.family import one_block, our_activation, read_fields, their_activation
from heddle.weights.mapping import Row

ARCHITECTURE = "Qwen3MoeForCausalLM"
# Of the feed-forwards without experts, of which there are none here: every layer has experts.
IDLE = ("sliding_window", "max_window_layers", "intermediate_size")
# Two names for one field, by the version of transformers.
EXPERTS = ("num_experts", "num_local_experts")
DEFAULTS: dict[str, Any] = {
    **{name: value for name, value in llama.DEFAULTS.items() if name not in ("mlp_bias", "intermediate_size")},
    "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "moe_intermediate_size": 768, "num_experts": None, "num_local_experts": None,
    "num_experts_per_tok": 8, "norm_topk_prob": False,
}  # fmt: skip
FIXED = {**llama.FIXED, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []}

THEIRS, OURS = llama.THEIRS + "mlp.", llama.OURS + "ffn."
EXPERT_ROWS = (
    Row(THEIRS + "gate.weight", (OURS + "router.weight",)),
    Row(THEIRS + "experts.{e}.gate_proj.weight", (OURS + "experts.gate",)),
    Row(THEIRS + "experts.{e}.up_proj.weight", (OURS + "experts.up",)),
    Row(THEIRS + "experts.{e}.down_proj.weight", (OURS + "experts.down",)),
)
TABLE = (*(row for row in qwen3.TABLE if ".mlp." not in row.theirs), *EXPERT_ROWS)


def described(f: Mapping[str, Any], usual: int = 128) -> dict[str, Any]:
    """The experts, of which there are as many as `usual` where that is not said, as the data of a heddle config."""
    return {
        "kind": "moe",
        "experts": next((f[name] for name in EXPERTS if f[name] is not None), usual),
        "active": f["num_experts_per_tok"],
        "expert": {
            "kind": "gated",
            "hidden": f["moe_intermediate_size"],
            "activation": our_activation(f["hidden_act"], "hidden_act"),
        },
        "renormalise": f["norm_topk_prob"],
    }


def written(config: TransformerConfig) -> dict[str, Any]:
    """What `described` read."""
    ffn = one_block(config).ffn
    shared = llama.from_config(config)
    del shared["mlp_bias"], shared["intermediate_size"]
    return {
        **shared,
        "hidden_act": their_activation(ffn.expert.activation),
        "moe_intermediate_size": ffn.width(config.dim),
        "num_experts": ffn.experts,
        "num_experts_per_tok": ffn.active,
        "norm_topk_prob": ffn.renormalise,
    }


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen3-MoE `config.json` as a heddle config.

    Raises:
        HeddleError: it asks for something that heddle does not compute, or its sizes are impossible.
    """
    f = read_fields({name: found[name] for name in found if name not in IDLE}, ARCHITECTURE, DEFAULTS, FIXED)
    data = llama.described({**f, "mlp_bias": False, "intermediate_size": None})
    block = data["decoder"]["block"]
    block["mixer"]["qk_norm"] = {"kind": "rms", "eps": f["rms_norm_eps"]}
    block["ffn"] = described(f)
    return TransformerConfig.of(data, where="Qwen3-MoE's config.json in heddle's terms")


QWEN3_MOE = replace(
    llama.LLAMA,
    name="qwen3_moe",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=written,
    table=TABLE,
    parts=replace(llama.PARTS, ffns=(MoEConfig(experts=2),)),
)
