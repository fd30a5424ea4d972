"""BART (Lewis et al. 2020) in Hugging Face's format: post-norm, and a table of positions with an offset of two rows."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    Tensors,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, OneRow, TensorRow, Vocabulary, pair

ARCHITECTURE = "BartForConditionalGeneration"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
    "activation_function": "gelu", "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "init_std": 0.02, "scale_embedding": False, "tie_word_embeddings": True,
}  # fmt: skip
# Older files also have these: where norms are placed, and fields that repeat others.
FIXED = {"is_encoder_decoder": True, "normalize_before": False, "add_final_layer_norm": False}
IDLE = (
    "num_hidden_layers",
    "add_bias_logits",
    "classif_dropout",
    "bad_words_ids",
    "extra_pos_embeddings",
    "_num_labels",
)
FORCES_BEGIN = "force_bos_token_to_be_generated"
OWN = {**FIXED, "normalize_embedding": True, "static_position_embeddings": False}
IDS = {
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
EPS = 1e-5  # Hugging Face transformers has no field for it
OPTIONS = FamilyOptions(stacks=("encoder", "decoder"), norm=LayerNormConfig(), ffns=(MLPConfig(),))
LAYERS = {"encoder": "model.encoder.layers.{i}.", "decoder": "model.decoder.layers.{i}."}


def _attention(published: str, heddle: str) -> tuple[TensorRow, ...]:
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
    return tuple(row for source, target in names.items() for row in pair(f"{published}.{source}", f"{heddle}.{target}"))


def _stack(stack: str) -> tuple[TensorRow, ...]:
    published, heddle = LAYERS[stack], f"{stack}.blocks.{{i}}."
    return (
        *_attention(published + "self_attn", heddle + "mixer"),
        *pair(published + "self_attn_layer_norm", heddle + "mixer_residual.outside"),
        *pair(published + "fc1", heddle + "ffn.up"),
        *pair(published + "fc2", heddle + "ffn.down"),
        *pair(published + "final_layer_norm", heddle + "ffn_residual.outside"),
    )


def one_table(config: TransformerConfig) -> bool:
    """Whether encoder and decoder share their token table."""
    return config.source_vocab_size is None


def two_tables(config: TransformerConfig) -> bool:
    """Whether the encoder has a separate token table."""
    return config.source_vocab_size is not None


SHARED_TABLE = TensorRow("model.shared.weight", ("embedding.weight",), Vocabulary())
# What BART and Marian share.
SHARED = (
    TensorRow(
        "model.encoder.embed_tokens.weight", ("source_embedding.weight",), Vocabulary(source=True), when=two_tables
    ),
    TensorRow("model.decoder.embed_tokens.weight", ("embedding.weight",), Vocabulary(), when=two_tables),
    *_stack("encoder"),
    *_stack("decoder"),
    *_attention(LAYERS["decoder"] + "encoder_attn", "decoder.blocks.{i}.cross"),
    *pair(LAYERS["decoder"] + "encoder_attn_layer_norm", "decoder.blocks.{i}.cross_residual.outside"),
    TensorRow("final_logits_bias", ("head.bias",), OneRow()),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)
TABLE = (
    # Files with two tables also have this one, which no layer reads. The decoder's row comes later and overrides it.
    SHARED_TABLE,
    *SHARED,
    TensorRow("model.encoder.embed_positions.weight", ("encoder.entry.positions.weight",)),
    TensorRow("model.decoder.embed_positions.weight", ("decoder.entry.positions.weight",)),
    *pair("model.encoder.layernorm_embedding", "encoder.entry.norm"),
    *pair("model.decoder.layernorm_embedding", "decoder.entry.norm"),
)
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
NAMES = Names(
    prefix="model.",
    copies={
        **dict.fromkeys(EMBEDDINGS, ("model.shared.weight",)),
        "lm_head.weight": ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    },
    instead=dict.fromkeys(EMBEDDINGS, "model.shared.weight"),
    zeros=("final_logits_bias",),
)


def config_data(f: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that BART and Marian share, as the data of a heddle config."""

    def stack(name: str) -> dict[str, Any]:
        attention = {
            "kind": "attention",
            "heads": f[f"{name}_attention_heads"],
            "dropout": f["attention_dropout"],
        }
        ffn = {
            "kind": "mlp",
            "hidden": f[f"{name}_ffn_dim"],
            "activation": heddle_activation(f["activation_function"], "activation_function"),
            "dropout": f["activation_dropout"],
        }
        block = {
            "mixer": attention,
            "cross": attention if name == "decoder" else None,
            "ffn": ffn,
            "norm": {"kind": "layer", "eps": EPS},
            "placement": "post",
            "dropout": f["dropout"],
        }
        scale = {"scale": f["scale_embedding"], "dropout": f["dropout"]}
        return {"depth": f[f"{name}_layers"], "block": block, "entry": {**entry, **scale}}

    return {
        "vocab_size": f["vocab_size"],
        # An untied head unties encoder and decoder, too.
        "source_vocab_size": None if f["tie_word_embeddings"] else f["vocab_size"],
        "dim": f["d_model"],
        "context": f["max_position_embeddings"],
        "encoder": stack("encoder"),
        "decoder": stack("decoder"),
        "head": {"tied": f["tie_word_embeddings"], "bias": True},
        "initial": {"std": f["init_std"]},
    }


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A BART `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    # Older files repeat forced_bos_token_id under another name.
    repeated = published.get("forced_bos_token_id") == published.get("bos_token_id", IDS["bos_token_id"])
    idle = (*IDLE, FORCES_BEGIN) if repeated or not published.get(FORCES_BEGIN) else IDLE
    f = read_fields(published, ARCHITECTURE, DEFAULTS, OWN, idle=idle)
    entry = {"positions": "learned", "offset": 2, "norm": {"kind": "layer", "eps": EPS}}
    return TransformerConfig.of(config_data(f, entry), where="BART's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest BART `config.json`."""
    stacks = config.stacks()
    sizes: dict[str, Any] = {}
    for name, stack in stacks.items():
        block = one_block(config, name)
        sizes |= {
            f"{name}_layers": stack.depth,
            f"{name}_ffn_dim": block.ffn.width(config.dim),
            f"{name}_attention_heads": block.mixer.heads,
        }
    block = one_block(config, "encoder")
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        **sizes,
        "activation_function": published_activation(block.ffn.activation),
        "d_model": config.dim,
        "dropout": block.dropout,
        "attention_dropout": block.mixer.dropout,
        "activation_dropout": block.ffn.dropout,
        "init_std": config.initial.std,
        "scale_embedding": stacks["encoder"].entry.scale,
        "tie_word_embeddings": getattr(config.head, "tied", True),
        **OWN,  # for CTranslate2; Hugging Face transformers does not have these fields
    }


def with_bias_and_tables(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """An equivalent model with a bias on the scores, and with two token tables if the head is untied."""
    head, table = config.head, tensors.get("embedding.weight")  # absent when only the config is rewritten
    if not isinstance(head, LanguageHeadConfig) or len(config.stacks()) < 2:
        return config, tensors
    changes: dict[str, Any] = {}
    rewritten = dict(tensors)
    if not head.bias:
        changes["head.bias"] = True
        rewritten |= {} if table is None else {"head.bias": table.new_zeros(len(table))}
    if not head.tied and one_table(config):
        changes["source_vocab_size"] = config.vocab_size
        rewritten |= {} if table is None else {"source_embedding.weight": table.clone()}
    return (config.override(changes), rewritten) if changes else (config, tensors)


def without_zeros(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """The model without a zero bias on the scores, which Hugging Face transformers does not train."""
    if tensors["head.bias"].any():
        return config, tensors
    return config.override({"head.bias": False}), {name: tensors[name] for name in tensors if name != "head.bias"}


BART = Family(
    name="bart",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=NAMES,
    layers=LAYERS,
    options=OPTIONS,
    ids=IDS,
    rewrite=with_bias_and_tables,
    simplify=without_zeros,
)
