"""ModernBERT (Warner et al. 2024) in Hugging Face's format, with its head for masked tokens: an encoder with gated feed-forwards,
most of whose layers see a window."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    one_block,
    our_activation,
    read_fields,
    their_activation,
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
# attention_dropout would also drop parts of attention's output, which heddle has for all branches or for none.
FIXED = {"attention_dropout": 0.0, "rope_scaling": None, "partial_rotary_factor": 1.0}
# Initial values, other heads, how to compute, and fields of older files that nothing reads.
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

THEIRS, OURS = "model.layers.{i}.", "encoder.blocks.{i}."


def _untied(config: TransformerConfig) -> bool:
    return not getattr(config.head, "tied", True)


TABLE = (
    TensorRow("model.embeddings.tok_embeddings.weight", ("embedding.weight",), Vocabulary()),
    *pair("model.embeddings.norm", "encoder.entry.norm"),
    *pair(THEIRS + "attn_norm", OURS + "mixer_residual.before"),
    *fused(THEIRS + "attn.Wqkv", OURS + "mixer", Fused(0, 3), Fused(0, 3)),
    *pair(THEIRS + "attn.Wo", OURS + "mixer.o"),
    *pair(THEIRS + "mlp_norm", OURS + "ffn_residual.before"),
    *(
        TensorRow(f"{THEIRS}mlp.Wi.{part}", (f"{OURS}ffn.gate.{part}", f"{OURS}ffn.up.{part}"), Fused(0, 2))
        for part in ("weight", "bias")
    ),
    *pair(THEIRS + "mlp.Wo", OURS + "ffn.down"),
    *pair("model.final_norm", "encoder.final_norm"),
    *pair("head.dense", "head.dense"),
    *pair("head.norm", "head.norm"),
    TensorRow("decoder.weight", ("head.weight",), Vocabulary(), when=_untied),
    TensorRow("decoder.bias", ("head.bias",), Vocabulary()),
)


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A ModernBERT `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
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
            "activation": our_activation(f["hidden_activation"], "hidden_activation"),
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
    whole, local = layers.two_rotaries(
        {**f, "rope_scaling": None}, ("global_rope_theta", GLOBAL), ("local_rope_theta", LOCAL)
    )
    period = layers.period(f["global_attn_every_n_layers"], "global_attn_every_n_layers")
    usual = [number for number in layers.numbers(stack["depth"]) if number % period]
    places = layers.said_local(f["layer_types"], stack["depth"], usual)
    # It says how many tokens a token sees on both sides together, heddle how many on one side, with the token.
    layers.local_and_global(stack, places, f["local_attention"] // 2 + 1, whole, local)
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
            "activation": our_activation(f["classifier_activation"], "classifier_activation"),
            "eps": f["norm_eps"],
            "transform_bias": f["classifier_bias"],
        },
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="ModernBERT's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest ModernBERT `config.json`."""
    block, stack, head = one_block(config, "encoder"), config.stacks()["encoder"], config.head
    window, types = layers.written_windows(stack)
    said = layers.written_rotaries(stack, block.mixer.width(config.dim), GLOBAL, LOCAL)
    bias = getattr(block.norm, "bias", True)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.ffn.width(config.dim),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": block.mixer.heads,
        "hidden_activation": their_activation(block.ffn.activation),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "norm_eps": block.norm.eps,
        "norm_bias": bias,
        "attention_bias": bool(block.mixer.biased()),
        "attention_dropout": 0.0,
        "layer_types": types,
        "rope_parameters": {name: each["rope_parameters"] for name, each in said.items()},
        "global_rope_theta": said[layers.WHOLE]["rope_theta"],
        "local_rope_theta": said[layers.LOCAL]["rope_theta"],
        "local_attention": DEFAULTS["local_attention"] if window is None else 2 * (window - 1),
        "embedding_dropout": stack.entry.dropout,
        "mlp_bias": block.ffn.bias,
        "mlp_dropout": block.ffn.dropout,
        "decoder_bias": getattr(head, "bias", True),
        "classifier_bias": bias,
        "classifier_activation": their_activation(getattr(head, "activation", "gelu")),
        "tie_word_embeddings": getattr(head, "tied", True),
    }


MODERNBERT = Family(
    name="modernbert",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"decoder.weight": ("model.embeddings.tok_embeddings.weight",)}),
    layers={"encoder": THEIRS},
    options=OPTIONS,
    ids={"bos_token_id": 50281, "eos_token_id": 50282, "pad_token_id": 50283},
)
