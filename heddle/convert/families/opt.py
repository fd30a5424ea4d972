"""OPT (Zhang et al. 2022) in Hugging Face's format: a decoder whose table of positions has an offset of two rows."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pair
from heddle.errors import HeddleError

ARCHITECTURE = "OPTForCausalLM"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "max_position_embeddings": 2048,
    "do_layer_norm_before": True, "_remove_final_layer_norm": False, "word_embed_proj_dim": None, "dropout": 0.1,
    "attention_dropout": 0.0, "num_attention_heads": 12, "activation_function": "relu", "init_std": 0.02,
    "enable_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
FIXED = {"layer_norm_elementwise_affine": True}
IDLE = ("activation_dropout",)  # in older files; no version of Hugging Face transformers reads it
EPS = 1e-5  # Hugging Face transformers has no field for it
OPTIONS = FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),))

LAYER, BLOCK = "model.decoder.layers.{i}.", "decoder.blocks.{i}."


def _before(config: TransformerConfig) -> bool:
    return bool(one_block(config).placement == "pre")


def _after(config: TransformerConfig) -> bool:
    return not _before(config)


PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
TABLE = (
    TensorRow("model.decoder.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
    TensorRow("model.decoder.embed_positions.weight", ("decoder.entry.positions.weight",)),
    *pair(LAYER + "self_attn_layer_norm", BLOCK + "mixer_residual.before", when=_before),
    *pair(LAYER + "self_attn_layer_norm", BLOCK + "mixer_residual.outside", when=_after),
    *(
        row
        for published, heddle in PROJECTIONS.items()
        for row in pair(f"{LAYER}self_attn.{published}", f"{BLOCK}mixer.{heddle}")
    ),
    *pair(LAYER + "final_layer_norm", BLOCK + "ffn_residual.before", when=_before),
    *pair(LAYER + "final_layer_norm", BLOCK + "ffn_residual.outside", when=_after),
    *pair(LAYER + "fc1", BLOCK + "ffn.up"),
    *pair(LAYER + "fc2", BLOCK + "ffn.down"),
    *pair("model.decoder.final_layer_norm", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """An OPT `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, such as token vectors narrower than the model, or its sizes
            are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
    width = f["word_embed_proj_dim"]
    if width not in (None, f["hidden_size"]):
        raise HeddleError(
            f"word_embed_proj_dim = {width!r} in config.json: heddle has no projection of token vectors, so it must be "
            f"hidden_size = {f['hidden_size']!r}"
        )
    block = {
        "mixer": {
            "kind": "attention",
            "heads": f["num_attention_heads"],
            "bias": f["enable_bias"],
            "dropout": f["attention_dropout"],
        },
        "ffn": {
            "kind": "mlp",
            "hidden": f["ffn_dim"],
            "activation": heddle_activation(f["activation_function"], "activation_function"),
            "bias": f["enable_bias"],
        },
        "norm": {"kind": "layer", "eps": EPS},
        "placement": "pre" if f["do_layer_norm_before"] else "post",
        "dropout": f["dropout"],
    }
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "decoder": {
            "depth": f["num_hidden_layers"],
            "block": block,
            "entry": {"positions": "learned", "offset": 2},
            "final_norm": bool(f["do_layer_norm_before"]) and not f["_remove_final_layer_norm"],
        },
        "head": {"tied": f["tie_word_embeddings"]},
        "initial": {"std": f["init_std"]},
    }
    return TransformerConfig.of(data, where="OPT's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest OPT `config.json`."""
    block, stack = one_block(config), config.stacks()["decoder"]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": stack.depth,
        "ffn_dim": block.ffn.width(config.dim),
        "max_position_embeddings": config.context,
        "do_layer_norm_before": _before(config),
        "_remove_final_layer_norm": _before(config) and not stack.ends_in_norm(),
        "word_embed_proj_dim": config.dim,
        "dropout": block.dropout,
        "attention_dropout": block.mixer.dropout,
        "num_attention_heads": block.mixer.heads,
        "activation_function": published_activation(block.ffn.activation),
        "init_std": config.initial.std,
        "enable_bias": bool(block.mixer.biased()),
        "tie_word_embeddings": getattr(config.head, "tied", True),
    }


OPT = Family(
    name="opt",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.decoder.embed_tokens.weight",)}),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
)
