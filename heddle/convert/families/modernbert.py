"""ModernBERT (Warner et al. 2024) in Hugging Face's format, with its masked LM head: an encoder with gated feed-forwards, and a
window in most layers."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Fused, Names, TensorRow, Vocabulary, fused, pair
from heddle.errors import HeddleError

ARCHITECTURE = "ModernBertForMaskedLM"
GLOBAL, LOCAL, PERIOD = 160_000.0, 10_000.0, 3
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192, "initializer_range": 0.02,
    "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "layer_types": None, "rope_parameters": None,
    "local_attention": 128, "embedding_dropout": 0.0, "mlp_bias": False, "mlp_dropout": 0.0, "decoder_bias": True,
    "classifier_bias": False, "classifier_activation": "gelu", "tie_word_embeddings": True,
    "global_rope_theta": None, "local_rope_theta": None, "global_attn_every_n_layers": PERIOD,
}  # fmt: skip
# attention_dropout would also apply to the output of attention; in heddle, all branches have dropout or none.
FIXED = {"attention_dropout": 0.0, "rope_scaling": None, "partial_rotary_factor": 1.0}
# Initial values, other heads, implementations, and fields of older files that are not read.
IDLE = (
    "initializer_cutoff_factor",
    "classifier_pooling",
    "cls_token_id",
    "deterministic_flash_attn",
    "sparse_prediction",
    "sparse_pred_ignore_index",
    "reference_compile",
    "repad_logits_with_grad",
    "layer_norm_eps",
    "position_embedding_type",
)
OPTIONS = FamilyOptions(stacks=("encoder",), norm=LayerNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),))

LAYER, BLOCK = "model.layers.{i}.", "encoder.blocks.{i}."


def _untied(config: TransformerConfig) -> bool:
    return not getattr(config.head, "tied", True)


TABLE = (
    TensorRow("model.embeddings.tok_embeddings.weight", ("embedding.weight",), Vocabulary()),
    *pair("model.embeddings.norm", "encoder.entry.norm"),
    *pair(LAYER + "attn_norm", BLOCK + "mixer_residual.before"),
    *fused(LAYER + "attn.Wqkv", BLOCK + "mixer", Fused(0, 3), Fused(0, 3)),
    *pair(LAYER + "attn.Wo", BLOCK + "mixer.o"),
    *pair(LAYER + "mlp_norm", BLOCK + "ffn_residual.before"),
    *(
        TensorRow(f"{LAYER}mlp.Wi.{part}", (f"{BLOCK}ffn.gate.{part}", f"{BLOCK}ffn.up.{part}"), Fused(0, 2))
        for part in ("weight", "bias")
    ),
    *pair(LAYER + "mlp.Wo", BLOCK + "ffn.down"),
    *pair("model.final_norm", "encoder.final_norm"),
    *pair("head.dense", "head.dense"),
    *pair("head.norm", "head.norm"),
    TensorRow("decoder.weight", ("head.weight",), Vocabulary(), when=_untied),
    TensorRow("decoder.bias", ("head.bias",), Vocabulary()),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A ModernBERT `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
    if f["classifier_bias"] != f["norm_bias"]:
        raise HeddleError(
            "classifier_bias and norm_bias differ in config.json: heddle's head has both biases or neither"
        )
    if not isinstance(f["local_attention"], int):
        raise HeddleError(f"local_attention = {f['local_attention']!r} in config.json: must be a whole number")
    norm = {"kind": "layer", "eps": f["norm_eps"], "bias": f["norm_bias"]}
    block = {
        "mixer": {"kind": "attention", "heads": f["num_attention_heads"], "bias": f["attention_bias"]},
        "ffn": {
            "kind": "gated",
            "hidden": f["intermediate_size"],
            "activation": heddle_activation(f["hidden_activation"], "hidden_activation"),
            "bias": f["mlp_bias"],
            "dropout": f["mlp_dropout"],
        },
        "norm": norm,
    }
    stack = {
        "depth": f["num_hidden_layers"],
        "block": block,
        "entry": {"norm": norm, "dropout": f["embedding_dropout"]},
        "final_norm": True,
    }
    global_rotary, local_rotary = layers.read_rotaries(
        {**f, "rope_scaling": None}, ("global_rope_theta", GLOBAL), ("local_rope_theta", LOCAL)
    )
    period = layers.period(f["global_attn_every_n_layers"], "global_attn_every_n_layers")
    default_local = [number for number in layers.numbers(stack["depth"]) if number % period]
    places = layers.local_layers(f["layer_types"], stack["depth"], default_local)
    # local_attention counts the visible tokens on both sides, heddle's window those on one side and the token itself.
    layers.set_local_and_global(stack, places, f["local_attention"] // 2 + 1, global_rotary, local_rotary)
    layers.changed(stack, layers.numbers(stack["depth"])[:1], {"placement": "pre_ffn"})  # the entry's norm comes before
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "encoder": stack,
        "head": {
            "tied": f["tie_word_embeddings"],
            "bias": f["decoder_bias"],
            "transform": True,
            "activation": heddle_activation(f["classifier_activation"], "classifier_activation"),
            "eps": f["norm_eps"],
            "transform_bias": f["classifier_bias"],
        },
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="ModernBERT's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest ModernBERT `config.json`."""
    block, stack, head = one_block(config, "encoder"), config.stacks()["encoder"], config.head
    window, types = layers.windows_and_types(stack)
    rotaries = layers.rotary_fields(stack, block.mixer.width(config.dim), GLOBAL, LOCAL)
    bias = getattr(block.norm, "bias", True)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.ffn.width(config.dim),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": block.mixer.heads,
        "hidden_activation": published_activation(block.ffn.activation),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "norm_eps": block.norm.eps,
        "norm_bias": bias,
        "attention_bias": bool(block.mixer.biased()),
        "attention_dropout": 0.0,
        "layer_types": types,
        "rope_parameters": {name: each["rope_parameters"] for name, each in rotaries.items()},
        "global_rope_theta": rotaries[layers.FULL]["rope_theta"],
        "local_rope_theta": rotaries[layers.LOCAL]["rope_theta"],
        "local_attention": DEFAULTS["local_attention"] if window is None else 2 * (window - 1),
        "embedding_dropout": stack.entry.dropout,
        "mlp_bias": block.ffn.bias,
        "mlp_dropout": block.ffn.dropout,
        "decoder_bias": getattr(head, "bias", True),
        "classifier_bias": bias,
        "classifier_activation": published_activation(getattr(head, "activation", "gelu")),
        "tie_word_embeddings": getattr(head, "tied", True),
    }


MODERNBERT = Family(
    name="modernbert",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"decoder.weight": ("model.embeddings.tok_embeddings.weight",)}),
    layers={"encoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 50281, "eos_token_id": 50282, "pad_token_id": 50283},
)
