"""Llama (Touvron et al. 2023) in Hugging Face's format; q and k pair channel i with i + d/2, as heddle does."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, RMSNormConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import rotary
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary
from heddle.errors import HeddleError

ARCHITECTURE = "LlamaForCausalLM"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu",
    "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
    **rotary.DEFAULTS,
}  # fmt: skip

OPTIONS = FamilyOptions(norm=RMSNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),))

LAYER, BLOCK = "model.layers.{i}.", "decoder.blocks.{i}."
TABLE = (
    TensorRow("model.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
    TensorRow(LAYER + "input_layernorm.weight", (BLOCK + "mixer_residual.before.weight",)),
    TensorRow(LAYER + "self_attn.q_proj.weight", (BLOCK + "mixer.q.weight",)),
    TensorRow(LAYER + "self_attn.q_proj.bias", (BLOCK + "mixer.q.bias",)),
    TensorRow(LAYER + "self_attn.k_proj.weight", (BLOCK + "mixer.k.weight",)),
    TensorRow(LAYER + "self_attn.k_proj.bias", (BLOCK + "mixer.k.bias",)),
    TensorRow(LAYER + "self_attn.v_proj.weight", (BLOCK + "mixer.v.weight",)),
    TensorRow(LAYER + "self_attn.v_proj.bias", (BLOCK + "mixer.v.bias",)),
    TensorRow(LAYER + "self_attn.o_proj.weight", (BLOCK + "mixer.o.weight",)),
    TensorRow(LAYER + "self_attn.o_proj.bias", (BLOCK + "mixer.o.bias",)),
    TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "ffn_residual.before.weight",)),
    TensorRow(LAYER + "mlp.gate_proj.weight", (BLOCK + "ffn.gate.weight",)),
    TensorRow(LAYER + "mlp.gate_proj.bias", (BLOCK + "ffn.gate.bias",)),
    TensorRow(LAYER + "mlp.up_proj.weight", (BLOCK + "ffn.up.weight",)),
    TensorRow(LAYER + "mlp.up_proj.bias", (BLOCK + "ffn.up.bias",)),
    TensorRow(LAYER + "mlp.down_proj.weight", (BLOCK + "ffn.down.weight",)),
    TensorRow(LAYER + "mlp.down_proj.bias", (BLOCK + "ffn.down.bias",)),
    TensorRow("model.norm.weight", ("decoder.final_norm.weight",)),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Llama `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    data = config_data(read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED))
    return TransformerConfig.of(data, where="Llama's config.json in heddle's terms")


def config_data(f: Mapping[str, Any], default_base: float = rotary.BASE, fraction: float = 1.0) -> dict[str, Any]:
    """The fields that Llama and related families share, as the data of a heddle config."""
    mixer = {
        "kind": "attention",
        "heads": f["num_attention_heads"],
        "kv_heads": f["num_key_value_heads"],
        "head_dim": f["head_dim"],
        "bias": f["attention_bias"],
        "relative": rotary.heddle_rotary(f, default_base, fraction),
        "dropout": f["attention_dropout"],
    }
    ffn = {
        "kind": "gated",
        "hidden": f["intermediate_size"],
        "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        "bias": f["mlp_bias"],
    }
    return {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "decoder": {
            "depth": f["num_hidden_layers"],
            "block": {"mixer": mixer, "ffn": ffn, "norm": {"kind": "rms", "eps": f["rms_norm_eps"]}},
        },
        "head": {"tied": f["tie_word_embeddings"]},
        "initial": {"std": f["initializer_range"]},
    }


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Llama `config.json`.

    Raises:
        HeddleError: the width is not a multiple of the heads, which the Hugging Face class refuses.
    """
    block, head = one_block(config), config.head  # the feed-forward may be the experts of a related family
    mixer = block.mixer
    assert isinstance(head, LanguageHeadConfig)
    if config.dim % mixer.heads:
        raise HeddleError(f"dim = {config.dim} must be a multiple of heads = {mixer.heads} for {ARCHITECTURE}")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.ffn.width(config.dim),
        "num_hidden_layers": config.stacks()["decoder"].depth,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.key_heads(),
        "head_dim": mixer.width(config.dim),
        "hidden_act": published_activation(getattr(block.ffn, "activation", "silu")),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "rms_norm_eps": block.norm.eps,
        "tie_word_embeddings": head.tied,
        "attention_bias": bool(mixer.biased()),
        "attention_dropout": mixer.dropout,
        "mlp_bias": getattr(block.ffn, "bias", False),
        **rotary.published_rotary(mixer.relative, mixer.width(config.dim)),
    }


LLAMA = Family(
    name="llama",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="model.",
        ignorable=(LAYER + "self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
        copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    ),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 1, "eos_token_id": 2},
)
