"""Llama (Touvron et al. 2023) in Hugging Face's format, and the families that differ from it in a few settings.

q and k pair channel i with i + d/2, as heddle does.
"""

from dataclasses import replace
from math import inf, nextafter
from typing import Any

from heddle.config.layers import GatedConfig, MoEConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import rotary
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import (
    ACTIVATION,
    BIAS,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    one_block,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pairs
from heddle.errors import HeddleError

# `attention_bias` and `mlp_bias` may change the biases. Families without these fields have none.
CONSTANTS: Fields = {
    "decoder.block.mixer.bias": False, "decoder.block.ffn.kind": "gated", "decoder.block.norm.kind": "rms",
}  # fmt: skip
ROWS = (
    FieldRow("vocab_size", 32000, "vocab_size"),
    FieldRow("hidden_size", 4096, "dim"),
    FieldRow("intermediate_size", 11008, "decoder.block.ffn.hidden"),
    FieldRow("num_hidden_layers", 32, "decoder.depth"),
    FieldRow("num_attention_heads", 32, "decoder.block.mixer.heads"),
    FieldRow("num_key_value_heads", None, "decoder.block.mixer.kv_heads"),
    FieldRow("head_dim", None, "decoder.block.mixer.head_dim"),
    FieldRow("hidden_act", "silu", "decoder.block.ffn.activation", ACTIVATION),
    FieldRow("max_position_embeddings", 2048, "context"),
    FieldRow("initializer_range", 0.02, "initial.std"),
    FieldRow("rms_norm_eps", 1e-6, "decoder.block.norm.eps"),
    FieldRow("tie_word_embeddings", False, "head.tied"),
    FieldRow("attention_bias", False, "decoder.block.mixer.bias", BIAS),
    FieldRow("attention_dropout", 0.0, "decoder.block.mixer.dropout"),
    FieldRow("mlp_bias", False, "decoder.block.ffn.bias"),
)
BIASES = ("attention_bias", "mlp_bias")
# For families with norms on queries and keys.
QK_EPS = FieldRow("rms_norm_eps", 1e-6, ("decoder.block.norm.eps", "decoder.block.mixer.qk_norm.eps"))


def _check_heads(config: TransformerConfig) -> Data:
    """No fields. Refuses a width that is not a multiple of the heads, as the Hugging Face classes do."""
    heads = one_block(config).mixer.heads
    if config.dim % heads:
        raise HeddleError(f"dim = {config.dim} must be a multiple of heads = {heads} for this Hugging Face class")
    return {}


WHOLE_HEADS = Part({}, write=_check_heads)
FIELDS = FieldTable("Llama's config.json", CONSTANTS, (*ROWS, rotary.angles(), WHOLE_HEADS), rotary.FIXED)

LAYER, BLOCK = "model.layers.{i}.", "decoder.blocks.{i}."
TABLE = (
    TensorRow("model.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
    TensorRow(LAYER + "input_layernorm.weight", (BLOCK + "mixer_residual.before.weight",)),
    *pairs(LAYER + "self_attn.", BLOCK + "mixer.", {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}),
    TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "ffn_residual.before.weight",)),
    *pairs(LAYER + "mlp.", BLOCK + "ffn.", {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}),
    TensorRow("model.norm.weight", ("decoder.final_norm.weight",)),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)
QK_NORMS = tuple(
    TensorRow(f"{LAYER}self_attn.{name}.weight", (f"{BLOCK}mixer.{name}.weight",)) for name in ("q_norm", "k_norm")
)
# A tied head may be stored twice.
NAMES = Names(prefix="model.", copies={"lm_head.weight": ("model.embed_tokens.weight",)})
OPTIONS = FamilyOptions(norm=RMSNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),))
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    fields=FIELDS,
    table=TABLE,
    names=replace(NAMES, ignorable=(LAYER + "self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 1, "eos_token_id": 2},
)

# Mistral (Jiang et al. 2023): a Llama without biases, with an optional window.
MISTRAL_ROWS = (
    *derived(ROWS, BIASES, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072),
    FieldRow("sliding_window", 4096, "decoder.block.mixer.window"),
)
MISTRAL = replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    fields=replace(FIELDS, title="Mistral's config.json", rows=(*MISTRAL_ROWS, rotary.angles(), WHOLE_HEADS)),
)

# Mixtral (Jiang et al. 2024): Mistral's block with experts, stored one tensor per expert.
MOE, FFN = LAYER + "block_sparse_moe.", BLOCK + "ffn."
MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    architecture="MixtralForCausalLM",
    fields=FieldTable(
        "Mixtral's config.json",
        {
            **CONSTANTS,
            "decoder.block.ffn.kind": "moe",
            "decoder.block.ffn.expert.kind": "gated",
            "decoder.block.ffn.renormalise": True,
        },
        (
            *derived(
                MISTRAL_ROWS,
                intermediate_size=FieldRow("intermediate_size", 14336, "decoder.block.ffn.expert.hidden"),
                hidden_act=FieldRow("hidden_act", "silu", "decoder.block.ffn.expert.activation", ACTIVATION),
                rms_norm_eps=1e-5,
                sliding_window=None,
            ),
            FieldRow("num_local_experts", 8, "decoder.block.ffn.experts"),
            FieldRow("num_experts_per_tok", 2, "decoder.block.ffn.active"),
            rotary.angles(1e6),
            WHOLE_HEADS,
        ),
        rotary.FIXED,
    ),
    table=(
        *(row for row in TABLE if ".mlp." not in row.published),
        TensorRow(MOE + "gate.weight", (FFN + "router.weight",)),
        TensorRow(MOE + "experts.{e}.w1.weight", (FFN + "experts.gate",)),
        TensorRow(MOE + "experts.{e}.w3.weight", (FFN + "experts.up",)),
        TensorRow(MOE + "experts.{e}.w2.weight", (FFN + "experts.down",)),
    ),
    options=replace(OPTIONS, ffns=(MoEConfig(experts=2),)),
)


def _read_divisors(f: Fields, data: Data) -> None:
    """The factors on embeddings and logits.

    Raises:
        HeddleError: one is not positive.
    """
    for name in ("embedding_multiplier", "logits_scaling"):
        if isinstance(f[name], bool) or not isinstance(f[name], int | float) or not f[name] > 0:
            raise HeddleError(f"{name} = {f[name]!r} in config.json: must be a number above 0")
    data["decoder"]["entry"] = {"scale": f["embedding_multiplier"]}
    data["head"]["scale"] = 1 / f["logits_scaling"]


def _write_divisors(config: TransformerConfig) -> Data:
    scale: Any = getattr(config.head, "scale", 1.0)
    near = (1 / scale, nextafter(1 / scale, inf), nextafter(1 / scale, 0))
    return {
        "embedding_multiplier": config.stacks()["decoder"].entry.factor(config.dim),
        "logits_scaling": next((each for each in near if 1 / each == scale), near[0]),
    }


# Granite (IBM 2024): a Llama with factors on embeddings, scores, branches and logits.
GRANITE = replace(
    LLAMA,
    name="granite",
    architecture="GraniteForCausalLM",
    fields=replace(
        FIELDS,
        title="Granite's config.json",
        rows=(
            *derived(ROWS, ("head_dim",)),
            FieldRow("residual_multiplier", 1.0, "decoder.block.branch_scale"),
            FieldRow("attention_multiplier", 1.0, "decoder.block.mixer.scale"),
            Part({"embedding_multiplier": 1.0, "logits_scaling": 1.0}, _read_divisors, _write_divisors),
            rotary.angles(),
            WHOLE_HEADS,
        ),
    ),
)
