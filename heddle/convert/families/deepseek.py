"""DeepSeek-V2 and V3 (DeepSeek-AI 2024) in Hugging Face's format: latent attention, and experts after the first layers."""

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any

from heddle.config.layers import GatedConfig, LatentConfig, MoEConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig, YarnScaling
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    own_code,
    published_activation,
    read_fields,
    without,
)
from heddle.convert.mapping import Expansions, Latents, Names, TensorRow
from heddle.errors import HeddleError

V2, V3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"
EPS = 1e-6  # of the norms of narrow vectors; Hugging Face transformers has no field for it
RATE = 0.001  # of the balancing bias in the training of V3; there is no field for it
SHARED: dict[str, Any] = {
    **without(llama.DEFAULTS, "num_key_value_heads", "head_dim", "mlp_bias"), "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
V2_DEFAULTS: dict[str, Any] = {
    **SHARED, "vocab_size": 102400, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": None,
    "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "n_group": None, "topk_group": None, "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
}  # fmt: skip
V3_DEFAULTS: dict[str, Any] = {
    **SHARED, "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "max_position_embeddings": 4096, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rope_interleave": True,
}  # fmt: skip
V2_FIXED = {**rotary.FIXED, "mlp_bias": False, "norm_topk_prob": False, "moe_layer_freq": 1, "scoring_func": "softmax"}
V3_FIXED = {**rotary.FIXED, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
# Every head has a key, head widths follow from other fields, and losses and multi-token prediction matter only in training.
IDLE = (
    "num_key_value_heads", "head_dim", "qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
    "num_mtp_layers",
)  # fmt: skip

LAYER, BLOCK = llama.LAYER, llama.BLOCK
ATTENTION, MIXER = LAYER + "self_attn.", BLOCK + "mixer."


def _narrow(config: TransformerConfig) -> bool:
    return one_block(config).mixer.q_rank is not None


def _direct(config: TransformerConfig) -> bool:
    return not _narrow(config)


TABLE = (
    *(row for row in llama.TABLE if "self_attn" not in row.published and not row.published.endswith("_proj.bias")),
    TensorRow(ATTENTION + "q_proj.weight", (MIXER + "q.weight",), when=_direct),
    TensorRow(ATTENTION + "q_a_proj.weight", (MIXER + "q_down.weight",), when=_narrow),
    TensorRow(ATTENTION + "q_a_proj.bias", (MIXER + "q_down.bias",), when=_narrow),
    TensorRow(ATTENTION + "q_a_layernorm.weight", (MIXER + "q_norm.weight",), when=_narrow),
    TensorRow(ATTENTION + "q_b_proj.weight", (MIXER + "q.weight",), when=_narrow),
    TensorRow(ATTENTION + "kv_a_proj_with_mqa.weight", (MIXER + "down.weight", MIXER + "r.weight"), Latents()),
    TensorRow(ATTENTION + "kv_a_proj_with_mqa.bias", (MIXER + "down.bias", MIXER + "r.bias"), Latents()),
    TensorRow(ATTENTION + "kv_a_layernorm.weight", (MIXER + "down_norm.weight",)),
    TensorRow(ATTENTION + "kv_b_proj.weight", (MIXER + "k.weight", MIXER + "v.weight"), Expansions()),
    TensorRow(ATTENTION + "o_proj.weight", (MIXER + "o.weight",)),
    TensorRow(ATTENTION + "o_proj.bias", (MIXER + "o.bias",)),
    TensorRow(LAYER + "mlp.gate.weight", (BLOCK + "ffn.router.weight",)),
    TensorRow(LAYER + "mlp.gate.e_score_correction_bias", (BLOCK + "ffn.router.bias",)),
    *(
        TensorRow(LAYER + f"mlp.experts.{{e}}.{name}_proj.weight", (BLOCK + f"ffn.experts.{name}",))
        for name in ("gate", "up", "down")
    ),
    *(
        TensorRow(LAYER + f"mlp.shared_experts.{name}_proj.weight", (BLOCK + f"ffn.shared.{name}.weight",))
        for name in ("gate", "up", "down")
    ),
)


def _scale(f: Mapping[str, Any], relative: Mapping[str, Any]) -> float | str:
    """The factor on scores, which YaRN may enlarge."""
    tables = [f[name] for name in rotary.TABLES if isinstance(f[name], Mapping)]
    share = next((table["mscale_all_dim"] for table in tables if table.get("mscale_all_dim")), 0)
    scaling = relative["scaling"]
    if not share or scaling is None or scaling["kind"] != "yarn":
        if share:
            raise HeddleError("mscale_all_dim in config.json: heddle reads it with yarn only")
        return "head_dim"
    grown = 0.1 * share * log(max(scaling["factor"], 1.0)) + 1.0
    return float((f["qk_nope_head_dim"] + f["qk_rope_head_dim"]) ** -0.5 * grown**2)


def _config_data(f: Mapping[str, Any], pairing: str, routing: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of both versions, as the data of a heddle config.

    Raises:
        HeddleError: a field is invalid.
    """
    data = llama.config_data({**f, "num_key_value_heads": None, "head_dim": None, "mlp_bias": False})
    relative = {**data["decoder"]["block"]["mixer"]["relative"], "pairing": pairing}
    stack, dense = data["decoder"], f["first_k_dense_replace"]
    if not isinstance(dense, int) or dense < 0:
        raise HeddleError(f"first_k_dense_replace = {dense!r} in config.json: must be a whole number")
    block = stack["block"]
    block["mixer"] = {
        "kind": "latent",
        "heads": f["num_attention_heads"],
        "rank": f["kv_lora_rank"],
        "q_rank": f["q_lora_rank"],
        "head_dim": f["qk_nope_head_dim"],
        "rotary_dim": f["qk_rope_head_dim"],
        "value_dim": f["v_head_dim"],
        "relative": relative,
        "scale": _scale(f, relative),
        "bias": f["attention_bias"],
        "eps": EPS,
        "dropout": f["attention_dropout"],
    }
    active = f["num_experts_per_tok"]
    moe = {
        "kind": "moe",
        "experts": f["n_routed_experts"],
        "active": active,
        "expert": {
            "kind": "gated",
            "hidden": f["moe_intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "shared": f["n_shared_experts"],
        "scale": f["routed_scaling_factor"],
        **routing,
    }
    first = layers.numbers(f["num_hidden_layers"])[:dense]
    if first and len(first) == f["num_hidden_layers"]:
        return data
    if first:
        stack["overrides"] = layers.overrides(first, stack["depth"], {"ffn": block["ffn"]})
    block["ffn"] = moe
    return data


def _groups(f: Mapping[str, Any], by: str) -> dict[str, Any]:
    """The groups of experts, if there are several."""
    count = f["n_group"] or 1
    return {} if count == 1 else {"groups": {"count": count, "active": f["topk_group"], "by": by}}


def v2_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A DeepSeek-V2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, V2, V2_DEFAULTS, V2_FIXED, idle=(*IDLE, *own_code(published, "Deepseek")))
    method = f["topk_method"]
    if method not in ("greedy", "group_limited_greedy"):
        raise HeddleError(f"topk_method = {method!r} in config.json: heddle supports greedy, group_limited_greedy")
    f["num_experts_per_tok"] = 2 if f["num_experts_per_tok"] is None else f["num_experts_per_tok"]
    data = _config_data(f, "neighbours", {} if method == "greedy" else _groups(f, "best"))
    return TransformerConfig.of(data, where="DeepSeek-V2's config.json in heddle's terms")


def v3_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A DeepSeek-V3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, V3, V3_DEFAULTS, V3_FIXED, idle=(*IDLE, *own_code(published, "Deepseek")))
    routing = {"gate": "sigmoid", "renormalise": f["norm_topk_prob"], "bias_rate": RATE, **_groups(f, "two")}
    data = _config_data(f, "neighbours" if f["rope_interleave"] else "halves", routing)
    return TransformerConfig.of(data, where="DeepSeek-V3's config.json in heddle's terms")


def _published_fields(config: TransformerConfig) -> dict[str, Any]:
    """The fields that `_config_data` reads."""
    stack, head = config.stacks()["decoder"], config.head
    feeds = [block.ffn for block in stack.blocks]
    moe = next((ffn for ffn in feeds if isinstance(ffn, MoEConfig)), MoEConfig(experts=2, active=1, shared=1))
    dense = next((ffn for ffn in feeds if isinstance(ffn, GatedConfig)), None)
    first = next((number for number, ffn in enumerate(feeds) if isinstance(ffn, MoEConfig)), len(feeds))
    mixer: LatentConfig = one_block(config).mixer
    width = mixer.width(config.dim)
    angles = rotary.published_rotary(mixer.relative, mixer.rotary_dim)
    scaling = mixer.relative.scaling
    if mixer.scale != "head_dim" and isinstance(scaling, YarnScaling) and scaling.factor > 1:
        share = ((mixer.scale * width**0.5) ** 0.5 - 1) / (0.1 * log(scaling.factor))
        # An explicit factor on cosines and sines restricts mscale_all_dim to the scores.
        magnitude = 0.1 * log(scaling.factor) + 1.0 if scaling.magnitude is None else scaling.magnitude
        more = {"mscale_all_dim": share, "attention_factor": magnitude}
        angles["rope_parameters"] |= more
        angles["rope_scaling"] = {**(angles["rope_scaling"] or {}), **more}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        **({} if dense is None else {"intermediate_size": dense.width(config.dim)}),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.heads,
        "hidden_act": published_activation(moe.expert.activation if dense is None else dense.activation),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "rms_norm_eps": stack.blocks[0].norm.eps,  # type: ignore[union-attr]
        "tie_word_embeddings": getattr(head, "tied", False),
        "attention_bias": mixer.bias,
        "attention_dropout": mixer.dropout,
        "kv_lora_rank": mixer.rank,
        "q_lora_rank": mixer.q_rank,
        "qk_nope_head_dim": mixer.head_dim,
        "qk_rope_head_dim": mixer.rotary_dim,
        "v_head_dim": mixer.value_dim or mixer.head_dim,
        "n_routed_experts": moe.experts,
        "n_shared_experts": moe.shared,
        "num_experts_per_tok": moe.active,
        "moe_intermediate_size": moe.width(config.dim),
        "first_k_dense_replace": first,
        "n_group": 1 if moe.groups is None else moe.groups.count,
        "topk_group": 1 if moe.groups is None else moe.groups.active,
        "routed_scaling_factor": moe.scale,
        **angles,
    }


def _v2_fields(config: TransformerConfig) -> dict[str, Any]:
    fields = _published_fields(config)
    return {**fields, "topk_method": "greedy" if fields["n_group"] == 1 else "group_limited_greedy"}


def _v3_fields(config: TransformerConfig) -> dict[str, Any]:
    fields, mixer = _published_fields(config), one_block(config).mixer
    feeds = [block.ffn for block in config.stacks()["decoder"].blocks]
    renormalise = next((ffn.renormalise for ffn in feeds if isinstance(ffn, MoEConfig)), True)
    return {**fields, "norm_topk_prob": renormalise, "rope_interleave": mixer.relative.pairing == "neighbours"}


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architecture=V2,
    to_config=v2_config,
    from_config=_v2_fields,
    table=TABLE,
    names=Names(
        prefix="model.",
        ignorable=(ATTENTION + "rotary_emb.inv_freq",),
        copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(
        norm=RMSNormConfig(),
        ffns=(MoEConfig(experts=2, shared=1), GatedConfig()),
        relatives=(RotaryConfig(pairing="neighbours"),),
        mixer=LatentConfig(heads=1, rank=8, head_dim=8, rotary_dim=2),
    ),
    ids={"bos_token_id": 1, "eos_token_id": 2},
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    architecture=V3,
    to_config=v3_config,
    from_config=_v3_fields,
    ids={"bos_token_id": 0, "eos_token_id": 1},
)
