"""Gemma 2 (Gemma Team 2024) in Hugging Face's format: sandwich norms stored minus 1, softcapping, alternating local layers."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, TensorRow
from heddle.errors import HeddleError

ARCHITECTURE = "Gemma2ForCausalLM"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "attention_bias": False, "attention_dropout": 0.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "layer_types": None, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    **rotary.DEFAULTS, "hidden_act": None,
}  # fmt: skip
# A setting for the KV cache in older files, and a second name for sliding_window, which transformers does not read.
IDLE = ("cache_implementation", "sliding_window_size")
FIXED = {**rotary.FIXED, "use_bidirectional_attention": False}
OPTIONS = FamilyOptions(norm=RMSNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),))

LAYER, BLOCK = llama.LAYER, llama.BLOCK
TABLE = (
    *(row for row in llama.TABLE if "norm" not in row.published and not row.published.endswith("_proj.bias")),
    *(row for row in llama.TABLE if ".self_attn." in row.published and row.published.endswith("_proj.bias")),
    TensorRow(LAYER + "input_layernorm.weight", (BLOCK + "mixer_residual.before.weight",), shift=1.0),
    TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "mixer_residual.after.weight",), shift=1.0),
    TensorRow(LAYER + "pre_feedforward_layernorm.weight", (BLOCK + "ffn_residual.before.weight",), shift=1.0),
    TensorRow(LAYER + "post_feedforward_layernorm.weight", (BLOCK + "ffn_residual.after.weight",), shift=1.0),
    TensorRow("model.norm.weight", ("decoder.final_norm.weight",), shift=1.0),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Gemma 2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE)
    data = config_data(f)
    stack = data["decoder"]
    every_second = layers.numbers(stack["depth"])[::2]
    local = layers.local_layers(f["layer_types"], stack["depth"], every_second)
    layers.set_window(stack, local, f["sliding_window"])
    return TransformerConfig.of(data, where="Gemma 2's config.json in heddle's terms")


def config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that Gemma 2 and Gemma 3 share, as the data of a heddle config."""
    activation = f["hidden_activation"] or DEFAULTS["hidden_activation"]
    data = llama.config_data({**f, "hidden_act": activation, "mlp_bias": False})
    scalar = f["query_pre_attn_scalar"]
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise HeddleError(f"query_pre_attn_scalar = {scalar!r} in config.json: must be a number above 0")
    stack = data["decoder"]
    block = stack["block"]
    block["mixer"] |= {"scale": float(scalar) ** -0.5, "cap": f["attn_logit_softcapping"]}
    block["ffn"]["activation"] = heddle_activation(activation, "hidden_activation")
    block["placement"] = "sandwich"
    stack |= {"final_norm": True, "entry": {"scale": True}}
    data["head"]["cap"] = f["final_logit_softcapping"]
    return data


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Gemma 2 `config.json`."""
    block, stack, head = one_block(config), config.stacks()["decoder"], config.head
    mixer, width = block.mixer, block.mixer.width(config.dim)
    scale = {"head_dim": width**-0.5, "dim": config.dim**-0.5}.get(mixer.scale, mixer.scale)
    window, types = layers.windows_and_types(stack)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": block.ffn.width(config.dim),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.key_heads(),
        "head_dim": width,
        "hidden_activation": published_activation(block.ffn.activation),
        "max_position_embeddings": config.context,
        "initializer_range": config.initial.std,
        "rms_norm_eps": block.norm.eps,
        "tie_word_embeddings": getattr(head, "tied", True),
        "attention_bias": bool(mixer.biased()),
        "attention_dropout": mixer.dropout,
        "query_pre_attn_scalar": round(scale**-2) or 1,  # Hugging Face transformers requires a whole number
        "sliding_window": window
        or DEFAULTS["sliding_window"],  # Hugging Face transformers requires a number even if no layer has a window
        "layer_types": types,
        "final_logit_softcapping": getattr(head, "cap", None),
        "attn_logit_softcapping": mixer.cap,
        **rotary.published_rotary(mixer.relative, width),
    }


GEMMA2 = Family(
    name="gemma2",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.embed_tokens.weight",)}),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
)
