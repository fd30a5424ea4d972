"""DeepSeek-V2 and V3 (DeepSeek-AI 2024) in Hugging Face's format: latent attention, and experts after the first layers."""

from collections.abc import Mapping
from dataclasses import replace
from math import log

from heddle.config.layers import GatedConfig, LatentConfig, MoEConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig, YarnScaling
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import FamilyOptions
from heddle.convert.fields import (
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    heddle_activation,
    one_block,
    own_code,
    switch,
)
from heddle.convert.mapping import Expansions, Latents, TensorRow
from heddle.errors import HeddleError

# Every head has a key, head widths follow from other fields, and losses and multi-token prediction matter only in training.
IDLE = (
    "num_key_value_heads", "head_dim", "qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
    "num_mtp_layers",
)  # fmt: skip
# Of a model whose layers have none.
NO_EXPERTS = MoEConfig(experts=2, active=1, shared=1, renormalise=True)
CONSTANTS = {
    "decoder.block.mixer.kind": "latent",
    "decoder.block.mixer.eps": 1e-6,  # of the norms of narrow vectors; Hugging Face transformers has no field for it
    "decoder.block.ffn.kind": "gated",
    "decoder.block.norm.kind": "rms",
}
ROWS = (
    *derived(
        llama.ROWS,
        ("num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "attention_bias", "mlp_bias"),
    ),
    FieldRow("attention_bias", False, "decoder.block.mixer.bias"),
    FieldRow("kv_lora_rank", 512, "decoder.block.mixer.rank"),
    FieldRow("q_lora_rank", 1536, "decoder.block.mixer.q_rank"),
    FieldRow("qk_nope_head_dim", 128, "decoder.block.mixer.head_dim"),
    FieldRow("qk_rope_head_dim", 64, "decoder.block.mixer.rotary_dim"),
    FieldRow("v_head_dim", 128, "decoder.block.mixer.value_dim"),
)


def _scale(f: Fields, relative: Fields) -> float | str:
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


def _read_angles(f: Fields, data: Data) -> None:
    mixer = data["decoder"]["block"]["mixer"]
    mixer["relative"] = mixer.get("relative", {}) | rotary.heddle_rotary(f)
    mixer["scale"] = _scale(f, mixer["relative"])


def _write_angles(config: TransformerConfig) -> Data:
    mixer: LatentConfig = one_block(config).mixer
    fields = rotary.published_rotary(mixer.relative, mixer.rotary_dim)
    scaling = mixer.relative.scaling
    if mixer.scale != "head_dim" and isinstance(scaling, YarnScaling) and scaling.factor > 1:
        share = ((mixer.scale * mixer.width(config.dim) ** 0.5) ** 0.5 - 1) / (0.1 * log(scaling.factor))
        # An explicit factor on cosines and sines restricts mscale_all_dim to the scores.
        magnitude = 0.1 * log(scaling.factor) + 1.0 if scaling.magnitude is None else scaling.magnitude
        more = {"mscale_all_dim": share, "attention_factor": magnitude}
        fields["rope_parameters"] |= more
        fields["rope_scaling"] = {**(fields["rope_scaling"] or {}), **more}
    return {**fields, "num_key_value_heads": mixer.heads}


ANGLES = Part(rotary.DEFAULTS, _read_angles, _write_angles)


def _put_experts(f: Fields, data: Data, routing: Fields) -> None:
    """Put the experts into all layers except the first ones.

    Raises:
        HeddleError: a field is invalid.
    """
    stack, dense = data["decoder"], f["first_k_dense_replace"]
    if not isinstance(dense, int) or dense < 0:
        raise HeddleError(f"first_k_dense_replace = {dense!r} in config.json: must be a whole number")
    activation = heddle_activation(f["hidden_act"], "hidden_act")
    stack["block"]["ffn"] |= {"hidden": f["intermediate_size"], "activation": activation, "bias": False}
    moe = {
        "kind": "moe",
        "experts": f["n_routed_experts"],
        "active": f["num_experts_per_tok"],
        "expert": {"kind": "gated", "hidden": f["moe_intermediate_size"], "activation": activation},
        "shared": f["n_shared_experts"],
        "scale": f["routed_scaling_factor"],
        **routing,
    }
    layers.set_experts(stack, layers.numbers(stack["depth"])[:dense], moe)


def _groups(f: Fields, by: str) -> Data:
    """The groups of experts, if there are several."""
    count = f["n_group"] or 1
    return {} if count == 1 else {"groups": {"count": count, "active": f["topk_group"], "by": by}}


def _write_experts(config: TransformerConfig) -> Data:
    moe, fields = layers.expert_fields(config, NO_EXPERTS)
    depth = config.stacks()["decoder"].depth
    dense = layers.without_experts(config)
    return {
        **fields,
        "n_routed_experts": moe.experts,
        "n_shared_experts": moe.shared,
        "first_k_dense_replace": next((number for number in range(depth) if number not in dense), depth),
        "n_group": 1 if moe.groups is None else moe.groups.count,
        "topk_group": 1 if moe.groups is None else moe.groups.active,
        "routed_scaling_factor": moe.scale,
    }


def _read_v2(f: Fields, data: Data) -> None:
    method, active = f["topk_method"], f["num_experts_per_tok"]
    if method not in ("greedy", "group_limited_greedy"):
        raise HeddleError(f"topk_method = {method!r} in config.json: heddle supports greedy, group_limited_greedy")
    routing = {} if method == "greedy" else _groups(f, "best")
    _put_experts({**f, "num_experts_per_tok": 2 if active is None else active}, data, routing)


def _write_v2(config: TransformerConfig) -> Data:
    fields = _write_experts(config)
    return {**fields, "topk_method": "greedy" if fields["n_group"] == 1 else "group_limited_greedy"}


def _read_v3(f: Fields, data: Data) -> None:
    # The rate of the balancing bias in training, which config.json does not have.
    routing = {"gate": "sigmoid", "renormalise": f["norm_topk_prob"], "bias_rate": 0.001, **_groups(f, "two")}
    _put_experts(f, data, routing)


def _write_v3(config: TransformerConfig) -> Data:
    moe, _ = layers.expert_fields(config, NO_EXPERTS)
    return {**_write_experts(config), "norm_topk_prob": moe.renormalise}


V2_FIELDS = FieldTable(
    "DeepSeek-V2's config.json",
    {**CONSTANTS, "decoder.block.mixer.relative.pairing": "neighbours"},
    (
        *derived(ROWS, vocab_size=102400),
        Part(
            {
                "intermediate_size": 11008, "hidden_act": "silu", "n_routed_experts": 64, "n_shared_experts": 2,
                "num_experts_per_tok": None, "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "n_group": None,
                "topk_group": None, "topk_method": "greedy", "routed_scaling_factor": 1.0,
            },
            _read_v2,
            _write_v2,
        ),
        ANGLES,
    ),
    fixed={
        **rotary.FIXED, "mlp_bias": False, "norm_topk_prob": False, "moe_layer_freq": 1, "scoring_func": "softmax",
    },
    idle=IDLE,
    more_idle=own_code("Deepseek"),
)  # fmt: skip
V3_FIELDS = FieldTable(
    "DeepSeek-V3's config.json",
    CONSTANTS,
    (
        *derived(
            ROWS,
            vocab_size=129280,
            hidden_size=7168,
            num_hidden_layers=61,
            num_attention_heads=128,
            max_position_embeddings=4096,
        ),
        FieldRow("rope_interleave", True, "decoder.block.mixer.relative.pairing", switch("neighbours", "halves")),
        Part(
            {
                "intermediate_size": 18432, "hidden_act": "silu", "n_routed_experts": 256, "n_shared_experts": 1,
                "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8,
                "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            },
            _read_v3,
            _write_v3,
        ),
        ANGLES,
    ),
    fixed={**rotary.FIXED, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    idle=IDLE,
    more_idle=own_code("Deepseek"),
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
DEEPSEEK_V2 = replace(
    llama.LLAMA,
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    fields=V2_FIELDS,
    table=TABLE,
    names=replace(llama.NAMES, ignorable=(ATTENTION + "rotary_emb.inv_freq",)),
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
    architecture="DeepseekV3ForCausalLM",
    fields=V3_FIELDS,
    ids={"bos_token_id": 0, "eos_token_id": 1},
)
