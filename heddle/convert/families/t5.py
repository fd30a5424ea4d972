"""T5 (Raffel et al. 2020) in Hugging Face's format: relative position buckets shared by a stack's layers, no biases, no scale."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, MLPConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import BucketsConfig
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

ARCHITECTURE = "T5ForConditionalGeneration"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
    "num_heads": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "n_positions": 512, "tie_word_embeddings": True,
    "scale_decoder_outputs": None, "dense_act_fn": None, "is_gated_act": None,
}  # fmt: skip
IDLE = ("initializer_factor",)
FIXED = {"is_encoder_decoder": True}
OPTIONS = FamilyOptions(
    stacks=("encoder", "decoder"),
    norm=RMSNormConfig(),
    ffns=(MLPConfig(), GatedConfig()),
    relatives=(BucketsConfig(),),
)


def _attention(published: str, heddle: str) -> tuple[TensorRow, ...]:
    return tuple(TensorRow(f"{published}.{name}.weight", (f"{heddle}.{name}.weight",)) for name in "qkvo")


def _feed_forward(number: int, stack: str) -> tuple[TensorRow, ...]:
    published, heddle = f"{stack}.block.{{i}}.layer.{number}.", f"{stack}.blocks.{{i}}."

    def gated(config: TransformerConfig) -> bool:
        return isinstance(one_block(config, stack).ffn, GatedConfig)

    def plain(config: TransformerConfig) -> bool:
        return not gated(config)

    return (
        TensorRow(published + "layer_norm.weight", (heddle + "ffn_residual.before.weight",)),
        TensorRow(published + "DenseReluDense.wi.weight", (heddle + "ffn.up.weight",), when=plain),
        TensorRow(published + "DenseReluDense.wi_0.weight", (heddle + "ffn.gate.weight",), when=gated),
        TensorRow(published + "DenseReluDense.wi_1.weight", (heddle + "ffn.up.weight",), when=gated),
        TensorRow(published + "DenseReluDense.wo.weight", (heddle + "ffn.down.weight",)),
    )


def _stack(stack: str, layer: str) -> tuple[TensorRow, ...]:
    published, heddle = f"{stack}.block.{{i}}.layer.0.", f"{stack}.blocks.{{i}}."
    buckets = f"{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        TensorRow(buckets, (f"{stack}.relative.{layer}.weight",)),
        *_attention(published + "SelfAttention", heddle + "mixer"),
        TensorRow(published + "layer_norm.weight", (heddle + "mixer_residual.before.weight",)),
        TensorRow(f"{stack}.final_layer_norm.weight", (f"{stack}.final_norm.weight",)),
    )


CROSS_LAYER, CROSS_BLOCK = "decoder.block.{i}.layer.1.", "decoder.blocks.{i}."


def table(layer: str) -> tuple[TensorRow, ...]:
    """The table of tensors. `layer` is the layer with relative positions, or `{i}` if every layer has its own."""
    return (
        TensorRow("shared.weight", ("embedding.weight",), Vocabulary()),
        *_stack("encoder", layer),
        *_feed_forward(1, "encoder"),
        *_stack("decoder", layer),
        *_attention(CROSS_LAYER + "EncDecAttention", CROSS_BLOCK + "cross"),
        TensorRow(CROSS_LAYER + "layer_norm.weight", (CROSS_BLOCK + "cross_residual.before.weight",)),
        *_feed_forward(2, "decoder"),
        TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
    )


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A T5 `config.json` as a heddle config.

    In version 1.1, `tie_word_embeddings = false` means an untied head without a scale. Hugging Face transformers 5 writes the scale
    as `scale_decoder_outputs` and always ties in its config; whether its files contain a head decides.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    data = config_data(read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=IDLE), shared=True)
    return TransformerConfig.of(data, where="T5's config.json in heddle's terms")


def config_data(f: Mapping[str, Any], shared: bool) -> dict[str, Any]:
    """The fields that T5 and UMT5 share, as the data of a heddle config. With `shared`, layers share their relative positions."""
    tied = True if f["tie_word_embeddings"] is None else f["tie_word_embeddings"]
    scaled = tied if f["scale_decoder_outputs"] is None else f["scale_decoder_outputs"]
    dim = f["d_model"]
    if not isinstance(dim, int) or dim < 1:
        raise HeddleError(f"d_model = {dim!r} in config.json: must be a whole number")
    mixer = {
        "kind": "attention",
        "heads": f["num_heads"],
        "head_dim": f["d_kv"],
        "scale": 1.0,
        "bias": False,
        "dropout": f["dropout_rate"],
    }
    relative = {
        "kind": "buckets",
        "buckets": f["relative_attention_num_buckets"],
        "furthest": f["relative_attention_max_distance"],
        "shared": shared,
    }
    block = {
        "mixer": {**mixer, "relative": relative},
        "ffn": _feed_forward_data(f),
        "norm": {"kind": "rms", "eps": f["layer_norm_epsilon"]},
        "dropout": f["dropout_rate"],
    }
    depth = f["num_layers"]
    decoder_depth = depth if f["num_decoder_layers"] is None else f["num_decoder_layers"]
    entry = {"dropout": f["dropout_rate"]}
    return {
        "vocab_size": f["vocab_size"],
        "dim": dim,
        "context": f["n_positions"],
        "encoder": {"depth": depth, "block": block, "entry": entry},
        "decoder": {"depth": decoder_depth, "block": {**block, "cross": mixer}, "entry": entry},
        "head": {"tied": tied, "scale": dim**-0.5 if scaled else 1.0},
    }


def _feed_forward_data(f: Mapping[str, Any]) -> dict[str, Any]:
    name = str(f["feed_forward_proj"])
    gated, activation = name.startswith("gated-"), name.removeprefix("gated-")
    # gated-gelu stands for the tanh approximation.
    activation = heddle_activation("gelu_new" if name == "gated-gelu" else activation, "feed_forward_proj")
    for field, expected in (("is_gated_act", gated), ("dense_act_fn", activation)):
        value = heddle_activation(f[field], field) if field == "dense_act_fn" and f[field] else f[field]
        if value not in (None, expected):
            raise HeddleError(f"{field} = {f[field]!r} in config.json, but feed_forward_proj = {name!r}")
    kind = {"kind": "gated" if gated else "mlp", "hidden": f["d_ff"], "activation": activation, "bias": False}
    return {**kind, "dropout": f["dropout_rate"]}


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest T5 `config.json`.

    Raises:
        HeddleError: T5 has no name for the activation.
    """
    block, head = one_block(config, "encoder"), config.head
    relative, activation = block.mixer.relative, block.ffn.activation
    tied = getattr(head, "tied", True)
    if isinstance(block.ffn, GatedConfig):
        if activation == "gelu":
            raise HeddleError(f"a gated feed-forward with the exact GELU has no name in {ARCHITECTURE}")
        proj = "gated-gelu" if activation == "gelu_tanh" else f"gated-{published_activation(activation)}"
    else:
        proj = published_activation(activation)
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.dim,
        "d_kv": block.mixer.width(config.dim),
        "d_ff": block.ffn.width(config.dim),
        "num_layers": config.stacks()["encoder"].depth,
        "num_decoder_layers": config.stacks()["decoder"].depth,
        "num_heads": block.mixer.heads,
        "relative_attention_num_buckets": relative.buckets,
        "relative_attention_max_distance": relative.furthest,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "feed_forward_proj": proj,
        "n_positions": config.context,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": getattr(head, "scale", 1.0) != 1.0,
        **FIXED,
    }


T5 = Family(
    name="t5",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=table("0"),
    names=Names(
        prefix="",
        # A table that no version of Hugging Face transformers reads.
        ignorable=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        copies={
            "encoder.embed_tokens.weight": ("shared.weight",),
            "decoder.embed_tokens.weight": ("shared.weight",),
            "lm_head.weight": ("shared.weight",),
        },
    ),
    layers={"encoder": "encoder.block.{i}.", "decoder": "decoder.block.{i}."},
    options=OPTIONS,
    ids={"eos_token_id": 1, "pad_token_id": 0},
    own_head=("lm_head.weight", "shared.weight"),
)
