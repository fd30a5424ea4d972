"""Mixtral (Jiang et al. 2024) in Hugging Face's format: Mistral's block with experts, stored one tensor per expert."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import llama, mistral, rotary
from heddle.convert.families.family import heddle_activation, one_block, published_activation, read_fields, without
from heddle.convert.mapping import TensorRow

ARCHITECTURE = "MixtralForCausalLM"
BASE = 1e6
DEFAULTS: dict[str, Any] = {
    **mistral.DEFAULTS,
    "rms_norm_eps": 1e-5, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

MOE, FFN = llama.LAYER + "block_sparse_moe.", llama.BLOCK + "ffn."
TABLE = (
    *(row for row in llama.TABLE if ".mlp." not in row.published),
    TensorRow(MOE + "gate.weight", (FFN + "router.weight",)),
    TensorRow(MOE + "experts.{e}.w1.weight", (FFN + "experts.gate",)),
    TensorRow(MOE + "experts.{e}.w3.weight", (FFN + "experts.up",)),
    TensorRow(MOE + "experts.{e}.w2.weight", (FFN + "experts.down",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Mixtral `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    data = llama.config_data({**f, "attention_bias": False, "mlp_bias": False}, BASE)
    block = data["decoder"]["block"]
    block["mixer"]["window"] = f["sliding_window"]
    block["ffn"] = {
        "kind": "moe",
        "experts": f["num_local_experts"],
        "active": f["num_experts_per_tok"],
        "expert": {
            "kind": "gated",
            "hidden": f["intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "renormalise": True,
    }
    return TransformerConfig.of(data, where="Mixtral's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Mixtral `config.json`."""
    block = one_block(config)
    shared = without(llama.from_config(config), *mistral.BIASES)
    return {
        **shared,
        "intermediate_size": block.ffn.width(config.dim),
        "hidden_act": published_activation(block.ffn.expert.activation),
        "sliding_window": block.mixer.window,
        "num_local_experts": block.ffn.experts,
        "num_experts_per_tok": block.ffn.active,
    }


MIXTRAL = replace(
    llama.LLAMA,
    name="mixtral",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2),)),
)
