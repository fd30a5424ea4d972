"""Falcon (Almazrouei et al. 2023) in Hugging Face's format: parallel branches with one or two norms and few key heads, or serial
branches with ALiBi (falcon-rw)."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import AlibiConfig, RotaryConfig
from heddle.convert.families import rotary
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    own_code,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Grouped, Names, TensorRow, Vocabulary, fused, pair
from heddle.errors import HeddleError

ARCHITECTURE = "FalconForCausalLM"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "num_ln_in_parallel_attn": None, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "num_kv_heads": None, "new_decoder_architecture": False, "multi_query": True,
    "parallel_attn": True, "bias": False, "max_position_embeddings": 2048, "ffn_hidden_size": None,
    "activation": "gelu", "tie_word_embeddings": True, "alibi": False,
    **rotary.DEFAULTS,
}  # fmt: skip
FIXED = {**rotary.FIXED, "apply_residual_connection_post_layernorm": False}
# Hugging Face transformers rounds each slope, and each slope · position, to bf16. Far from the first token, scores then depend on
# absolute positions. heddle rounds neither. With these numbers of heads, bf16 represents the slopes exactly, and up to this context
# the positions.
EXACT_HEADS, EXACT_CONTEXT = (1, 2, 4, 8), 257
OPTIONS = FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),), relatives=(RotaryConfig(), AlibiConfig()))

LAYER, BLOCK = "transformer.h.{i}.", "decoder.blocks.{i}."


def _two(config: TransformerConfig) -> bool:
    return bool(one_block(config).wiring == "parallel")


def _one(config: TransformerConfig) -> bool:
    return not _two(config)


TABLE = (
    TensorRow("transformer.word_embeddings.weight", ("embedding.weight",), Vocabulary()),
    *pair(LAYER + "input_layernorm", BLOCK + "mixer_residual.before", when=_one),
    *pair(LAYER + "post_attention_layernorm", BLOCK + "ffn_residual.before", when=_one),
    *pair(LAYER + "ln_attn", BLOCK + "mixer_residual.before", when=_two),
    *pair(LAYER + "ln_mlp", BLOCK + "ffn_residual.before", when=_two),
    *fused(LAYER + "self_attention.query_key_value", BLOCK + "mixer", Grouped(), Grouped()),
    *pair(LAYER + "self_attention.dense", BLOCK + "mixer.o"),
    *pair(LAYER + "mlp.dense_h_to_4h", BLOCK + "ffn.up"),
    *pair(LAYER + "mlp.dense_4h_to_h", BLOCK + "ffn.down"),
    *pair("transformer.ln_f", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)


def _wiring(f: Mapping[str, Any]) -> str:
    norms = f["num_ln_in_parallel_attn"]
    if not f["parallel_attn"]:
        if f["new_decoder_architecture"]:
            raise HeddleError("parallel_attn = False in config.json: not possible with new_decoder_architecture")
        return "serial"
    if norms not in (None, 1, 2):
        raise HeddleError(f"num_ln_in_parallel_attn = {norms!r} in config.json: must be 1 or 2")
    if not f["new_decoder_architecture"] and norms == 2:
        raise HeddleError("num_ln_in_parallel_attn = 2 in config.json: only possible with new_decoder_architecture")
    return "parallel" if f["new_decoder_architecture"] and norms != 1 else "parallel_one_norm"


def _relative(f: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary positions, or ALiBi slopes, which are divided by the root of the head's width like the scores."""
    if not f["alibi"]:
        return rotary.heddle_rotary(f)
    width, heads = f["hidden_size"], f["num_attention_heads"]
    if not (isinstance(width, int) and isinstance(heads, int) and width >= heads > 0):
        raise HeddleError(
            f"hidden_size = {width!r} and num_attention_heads = {heads!r} in config.json: the heads would have no channels"
        )
    return {"kind": "alibi", "factor": (width // heads) ** -0.5}


def _their_relative(config: TransformerConfig) -> dict[str, Any]:
    """The fields of rotary positions or ALiBi.

    Raises:
        HeddleError: Hugging Face transformers would round the slopes.
    """
    mixer = one_block(config).mixer
    if not isinstance(mixer.relative, AlibiConfig):
        return {"alibi": False, **rotary.published_rotary(mixer.relative, mixer.width(config.dim))}
    if mixer.heads not in EXACT_HEADS or config.context > EXACT_CONTEXT:
        raise HeddleError(
            f"{ARCHITECTURE} rounds ALiBi to bf16, which is exact only for {', '.join(map(str, EXACT_HEADS))} heads and a "
            f"context of at most {EXACT_CONTEXT}"
        )
    return {"alibi": True}


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Falcon `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=own_code(published, "Falcon"))
    kv_heads = f["num_kv_heads"] if f["new_decoder_architecture"] else 1 if f["multi_query"] else None
    block = {
        "mixer": {
            "kind": "attention",
            "heads": f["num_attention_heads"],
            "kv_heads": kv_heads,
            "bias": f["bias"],
            "relative": _relative(f),
            "dropout": f["attention_dropout"],
        },
        "ffn": {
            "kind": "mlp",
            "hidden": f["ffn_hidden_size"],
            "activation": heddle_activation(f["activation"], "activation"),
            "bias": f["bias"],
        },
        "norm": {"kind": "layer", "eps": f["layer_norm_epsilon"]},
        "wiring": _wiring(f),
        "dropout": f["hidden_dropout"],
    }
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "decoder": {"depth": f["num_hidden_layers"], "block": block},
        "head": {"tied": f["tie_word_embeddings"]},
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="Falcon's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Falcon `config.json`: in the older of its two architectures if that can express it."""
    block = one_block(config)
    mixer, kv_heads = block.mixer, block.mixer.key_heads()
    new = block.wiring == "parallel" or (block.wiring == "parallel_one_norm" and kv_heads not in (1, mixer.heads))
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.stacks()["decoder"].depth,
        "num_attention_heads": mixer.heads,
        "num_ln_in_parallel_attn": (2 if block.wiring == "parallel" else 1) if new else None,
        "layer_norm_epsilon": block.norm.eps,
        "initializer_range": config.initial.std,
        "hidden_dropout": block.dropout,
        "attention_dropout": mixer.dropout,
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": new,
        "multi_query": kv_heads == 1,
        "parallel_attn": block.wiring != "serial",
        "bias": bool(mixer.biased()),
        "max_position_embeddings": config.context,
        "ffn_hidden_size": block.ffn.width(config.dim),
        "activation": published_activation(block.ffn.activation),
        "tie_word_embeddings": getattr(config.head, "tied", True),
        **_their_relative(config),
    }


FALCON = Family(
    name="falcon",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="transformer.",
        ignorable=(LAYER + "self_attention.rotary_emb.inv_freq",),
        copies={"lm_head.weight": ("transformer.word_embeddings.weight",)},
    ),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 11, "eos_token_id": 11},
    attention="sdpa",  # its eager attention adds ALiBi twice
)
