"""Qwen3-MoE (Yang et al. 2025) in Hugging Face's format: Qwen3's block with experts, stored one tensor per expert."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, qwen3, rotary
from heddle.convert.families.family import heddle_activation, one_block, published_activation, read_fields, without
from heddle.convert.mapping import TensorRow
from heddle.errors import HeddleError

ARCHITECTURE = "Qwen3MoeForCausalLM"
# Written by some versions of Hugging Face transformers, but a window applies to all layers here.
IDLE = ("max_window_layers",)
# The name of the field depends on the version of Hugging Face transformers.
EXPERTS = ("num_experts", "num_local_experts")
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "mlp_bias"),
    "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "moe_intermediate_size": 768, "num_experts": None, "num_local_experts": None,
    "num_experts_per_tok": 8, "norm_topk_prob": False, "intermediate_size": 6144, "decoder_sparse_step": 1,
    "mlp_only_layers": None, "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip

MLP, FFN = llama.LAYER + "mlp.", llama.BLOCK + "ffn."
EXPERT_ROWS = (
    TensorRow(MLP + "gate.weight", (FFN + "router.weight",)),
    TensorRow(MLP + "experts.{e}.gate_proj.weight", (FFN + "experts.gate",)),
    TensorRow(MLP + "experts.{e}.up_proj.weight", (FFN + "experts.up",)),
    TensorRow(MLP + "experts.{e}.down_proj.weight", (FFN + "experts.down",)),
)
TABLE = (*qwen3.TABLE, *EXPERT_ROWS)


def add_experts(data: dict[str, Any], f: Mapping[str, Any], default_experts: int = 128, **shared: Any) -> None:
    """Put experts into the layers of config data, except those that `mlp_only_layers` and `decoder_sparse_step` exclude.

    Args:
        data: the result of `llama.config_data`; its feed-forward is that of the excluded layers.
        f: the fields.
        default_experts: the default number of experts.
        **shared: further data of the `MoEConfig`.

    Raises:
        HeddleError: a field about experts is invalid.
    """
    stack, step, only = data["decoder"], f["decoder_sparse_step"], f["mlp_only_layers"] or []
    if not isinstance(step, int) or step < 1:
        raise HeddleError(f"decoder_sparse_step = {step!r} in config.json: must be a whole number above 0")
    every = layers.numbers(stack["depth"])
    if not isinstance(only, list) or (every and any(number not in every for number in only)):
        raise HeddleError(f"mlp_only_layers = {only!r} in config.json: must be a list of numbers below {len(every)}")
    moe = {
        "kind": "moe",
        "experts": next((f[name] for name in EXPERTS if f[name] is not None), default_experts),
        "active": f["num_experts_per_tok"],
        "expert": {
            "kind": "gated",
            "hidden": f["moe_intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "renormalise": f["norm_topk_prob"],
        **shared,
    }
    dense = [number for number in every if number in only or (number + 1) % step or moe["experts"] == 0]
    block = stack["block"]
    if every and dense == every:
        return
    if dense:
        stack["overrides"] = layers.overrides(dense, stack["depth"], {"ffn": block["ffn"]})
    block["ffn"] = moe


def published_fields(config: TransformerConfig) -> dict[str, Any]:
    """The fields that `add_experts` and its callers read."""
    feeds = [block.ffn for block in config.stacks()["decoder"].blocks]
    moe = next((ffn for ffn in feeds if isinstance(ffn, MoEConfig)), MoEConfig(experts=1, active=1))
    dense = next((ffn for ffn in feeds if isinstance(ffn, GatedConfig)), None)
    return {
        **without(llama.from_config(config), "mlp_bias", "intermediate_size"),
        **({} if dense is None else {"intermediate_size": dense.width(config.dim)}),
        "hidden_act": published_activation(moe.expert.activation if dense is None else dense.activation),
        "moe_intermediate_size": moe.width(config.dim),
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.active,
        "norm_topk_prob": moe.renormalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [number for number, ffn in enumerate(feeds) if not isinstance(ffn, MoEConfig)],
    }


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Qwen3-MoE `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED, idle=IDLE)
    data = llama.config_data({**f, "mlp_bias": False})
    mixer = data["decoder"]["block"]["mixer"]
    mixer |= {"qk_norm": {"kind": "rms", "eps": f["rms_norm_eps"]}}
    mixer |= {"window": f["sliding_window"]} if f["use_sliding_window"] else {}
    add_experts(data, f)
    return TransformerConfig.of(data, where="Qwen3-MoE's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Qwen3-MoE `config.json`."""
    window = one_block(config).mixer.window
    return {**published_fields(config), "use_sliding_window": window is not None, "sliding_window": window}


QWEN3_MOE = replace(
    llama.LLAMA,
    name="qwen3_moe",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    ids={},
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2), GatedConfig())),
)
