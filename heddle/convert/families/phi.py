"""Phi-1 to Phi-2 (Gunasekar et al. 2023) in Hugging Face's format: parallel branches with one norm, partial rotary positions."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pair

ARCHITECTURE = "PhiForCausalLM"
FRACTION = 0.5
DEFAULTS: dict[str, Any] = {
    "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
    "num_key_value_heads": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "hidden_act": "gelu_new",
    "max_position_embeddings": 2048, "initializer_range": 0.02, "layer_norm_eps": 1e-5, "tie_word_embeddings": False,
    "qk_layernorm": False, **rotary.DEFAULTS, "partial_rotary_factor": None,
}  # fmt: skip

LAYER, BLOCK = llama.LAYER, llama.BLOCK
PROJECTIONS = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "dense": "o",
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
}
TABLE = (
    TensorRow("model.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
    *pair(LAYER + "input_layernorm", BLOCK + "mixer_residual.before"),
    *(
        row
        for published, heddle in PROJECTIONS.items()
        for row in pair(f"{LAYER}self_attn.{published}", f"{BLOCK}mixer.{heddle}")
    ),
    *pair(LAYER + "mlp.fc1", BLOCK + "ffn.up"),
    *pair(LAYER + "mlp.fc2", BLOCK + "ffn.down"),
    *pair("model.final_layernorm", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
    TensorRow("lm_head.bias", ("head.bias",), Vocabulary()),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Phi `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, {"rope_interleaved": False})
    norm = {"kind": "layer", "eps": f["layer_norm_eps"]}
    fraction = rotary.read_fraction(f, FRACTION, "partial_rotary_factor")
    block = {
        "mixer": {
            "kind": "attention",
            "heads": f["num_attention_heads"],
            "kv_heads": f["num_key_value_heads"],
            "qk_norm": norm if f["qk_layernorm"] else None,
            "relative": rotary.heddle_rotary(f, fraction=fraction),
            "dropout": f["attention_dropout"],
        },
        "ffn": {
            "kind": "mlp",
            "hidden": f["intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "norm": norm,
        "wiring": "parallel_one_norm",
        "dropout": f["resid_pdrop"],
    }
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "decoder": {"depth": f["num_hidden_layers"], "block": block, "entry": {"dropout": f["embd_pdrop"]}},
        "head": {"tied": f["tie_word_embeddings"], "bias": True},
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="Phi's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Phi `config.json`."""
    block, stack = one_block(config), config.stacks()["decoder"]
    mixer = block.mixer
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.ffn.width(config.dim),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.key_heads(),
        "resid_pdrop": block.dropout,
        "embd_pdrop": stack.entry.dropout,
        "attention_dropout": mixer.dropout,
        "hidden_act": published_activation(block.ffn.activation),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "layer_norm_eps": block.norm.eps,
        "tie_word_embeddings": getattr(config.head, "tied", False),
        "qk_layernorm": mixer.qk_norm is not None,
        "partial_rotary_factor": mixer.relative.fraction,
        **rotary.published_rotary(mixer.relative, mixer.width(config.dim), partial=True),
    }


PHI = Family(
    name="phi",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="model.",
        ignorable=(LAYER + "self_attn.rotary_emb.inv_freq",),
        copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(
        norm=LayerNormConfig(),
        ffns=(MLPConfig(),),
        relatives=(RotaryConfig(),),
        head=LanguageHeadConfig(tied=False, bias=True),
    ),
    ids={"bos_token_id": 1, "eos_token_id": 2},
)
