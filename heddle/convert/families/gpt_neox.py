"""GPT-NeoX (Black et al. 2022; Pythia) in Hugging Face's format: parallel branches, partial rotary positions, fused q, k and v."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
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
from heddle.convert.mapping import Grouped, Names, TensorRow, Vocabulary, fused, pair

ARCHITECTURE = "GPTNeoXForCausalLM"
FRACTION = 0.25
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "max_position_embeddings": 2048, "initializer_range": 0.02, "layer_norm_eps": 1e-5, "tie_word_embeddings": False,
    "use_parallel_residual": True, "attention_bias": True,
    **rotary.DEFAULTS, "rotary_pct": None, "rotary_emb_base": None, "partial_rotary_factor": None,
}  # fmt: skip
OPTIONS = FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),), relatives=(RotaryConfig(),))

LAYER, BLOCK = "gpt_neox.layers.{i}.", "decoder.blocks.{i}."
TABLE = (
    TensorRow("gpt_neox.embed_in.weight", ("embedding.weight",), Vocabulary()),
    *pair(LAYER + "input_layernorm", BLOCK + "mixer_residual.before"),
    *pair(LAYER + "post_attention_layernorm", BLOCK + "ffn_residual.before"),
    *fused(LAYER + "attention.query_key_value", BLOCK + "mixer", Grouped(), Grouped()),
    *pair(LAYER + "attention.dense", BLOCK + "mixer.o"),
    *pair(LAYER + "mlp.dense_h_to_4h", BLOCK + "ffn.up"),
    *pair(LAYER + "mlp.dense_4h_to_h", BLOCK + "ffn.down"),
    *pair("gpt_neox.final_layer_norm", "decoder.final_norm"),
    TensorRow("embed_out.weight", ("head.weight",), Vocabulary()),
)


def _rotary(f: Mapping[str, Any]) -> dict[str, Any]:
    """Base, fraction and scaling of the angles, from the places in which versions of Hugging Face transformers store them."""
    fraction = rotary.read_fraction(f, FRACTION, "rotary_pct", "partial_rotary_factor")
    base = f["rope_theta"] if f["rotary_emb_base"] is None else f["rotary_emb_base"]
    return rotary.heddle_rotary({**f, "rope_theta": base}, fraction=fraction)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A GPT-NeoX `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, {"rope_interleaved": False})
    block = {
        "mixer": {
            "kind": "attention",
            "heads": f["num_attention_heads"],
            "bias": f["attention_bias"],
            "relative": _rotary(f),
            "dropout": f["attention_dropout"],
        },
        "ffn": {
            "kind": "mlp",
            "hidden": f["intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "norm": {"kind": "layer", "eps": f["layer_norm_eps"]},
        "wiring": "parallel" if f["use_parallel_residual"] else "serial",
        "dropout": f["hidden_dropout"],
    }
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "decoder": {
            "depth": f["num_hidden_layers"],
            "block": block,
            "entry": {"dropout": f["hidden_dropout"]},
        },
        "head": {"tied": f["tie_word_embeddings"]},
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="GPT-NeoX's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest GPT-NeoX `config.json`."""
    block = one_block(config)
    mixer, relative = block.mixer, block.mixer.relative
    rotary_fields = rotary.published_rotary(relative, mixer.width(config.dim), partial=True)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.stacks()["decoder"].depth,
        "num_attention_heads": mixer.heads,
        "intermediate_size": block.ffn.width(config.dim),
        "hidden_act": published_activation(block.ffn.activation),
        "attention_dropout": mixer.dropout,
        "hidden_dropout": block.dropout,
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "layer_norm_eps": block.norm.eps,
        "tie_word_embeddings": getattr(config.head, "tied", False),
        "use_parallel_residual": block.wiring != "serial",
        "attention_bias": bool(mixer.biased()),
        "rotary_pct": relative.fraction,
        "rotary_emb_base": rotary_fields["rope_theta"],
        **rotary_fields,
    }


GPT_NEOX = Family(
    name="gpt_neox",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="gpt_neox.",
        ignorable=tuple(LAYER + f"attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
        copies={"embed_out.weight": ("gpt_neox.embed_in.weight",)},
    ),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 0, "eos_token_id": 2},
)
