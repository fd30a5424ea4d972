"""T5 (Raffel et al. 2020) and UMT5 (Chung et al. 2023) in Hugging Face's format: relative position buckets, no biases, no scale.

The layers of a stack share their relative positions in T5; in UMT5, every layer has its own.
"""

from dataclasses import replace

from heddle.config.layers import GatedConfig, MLPConfig, RMSNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import BucketsConfig
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import (
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    both,
    derived,
    heddle_activation,
    one_block,
    published_activation,
    written,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary
from heddle.errors import HeddleError


def _read_feed_forward(f: Fields, data: Data) -> None:
    name = str(f["feed_forward_proj"])
    gated, activation = name.startswith("gated-"), name.removeprefix("gated-")
    # gated-gelu stands for the tanh approximation.
    activation = heddle_activation("gelu_new" if name == "gated-gelu" else activation, "feed_forward_proj")
    for field, expected in (("is_gated_act", gated), ("dense_act_fn", activation)):
        value = heddle_activation(f[field], field) if field == "dense_act_fn" and f[field] else f[field]
        if value not in (None, expected):
            raise HeddleError(f"{field} = {f[field]!r} in config.json, but feed_forward_proj = {name!r}")
    for stack in ("encoder", "decoder"):
        data[stack]["block"]["ffn"] |= {"kind": "gated" if gated else "mlp", "activation": activation}


def _write_feed_forward(config: TransformerConfig) -> Data:
    """The name of the feed-forward.

    Raises:
        HeddleError: T5 has none.
    """
    ffn = one_block(config, "encoder").ffn
    name = published_activation(ffn.activation)
    if isinstance(ffn, GatedConfig):
        if ffn.activation == "gelu":
            raise HeddleError(f"a gated feed-forward with the exact GELU has no name in {T5.architecture}")
        name = "gated-gelu" if ffn.activation == "gelu_tanh" else f"gated-{name}"
    return {"feed_forward_proj": name}


def _read_head(f: Fields, data: Data) -> None:
    """In version 1.1, `tie_word_embeddings = false` means an untied head without a scale.

    Hugging Face transformers 5 writes the scale as `scale_decoder_outputs` and always ties in its config; whether its files contain
    a head decides.
    """
    tied = True if f["tie_word_embeddings"] is None else f["tie_word_embeddings"]
    scaled = tied if f["scale_decoder_outputs"] is None else f["scale_decoder_outputs"]
    dim = f["d_model"]
    if not isinstance(dim, int) or dim < 1:
        raise HeddleError(f"d_model = {dim!r} in config.json: must be a whole number")
    data["head"] = {"tied": tied, "scale": dim**-0.5 if scaled else 1.0}


def _write_head(config: TransformerConfig) -> Data:
    scale = getattr(config.head, "scale", 1.0)
    return {"tie_word_embeddings": getattr(config.head, "tied", True), "scale_decoder_outputs": scale != 1.0}


def _read_depth(f: Fields, data: Data) -> None:
    data["decoder"]["depth"] = f["num_layers"] if f["num_decoder_layers"] is None else f["num_decoder_layers"]


def _write_depth(config: TransformerConfig) -> Data:
    return {"num_decoder_layers": config.stacks()["decoder"].depth}


HEAD = Part({"tie_word_embeddings": True, "scale_decoder_outputs": None}, _read_head, _write_head)
MIXERS = (*both("block.mixer"), "decoder.block.cross")
CONSTANTS: Fields = {
    **{f"{mixer}.scale": 1.0 for mixer in MIXERS},
    **{f"{mixer}.bias": False for mixer in MIXERS},
    **dict.fromkeys(both("block.mixer.relative.kind"), "buckets"),
    **dict.fromkeys(both("block.mixer.relative.shared"), True),
    **dict.fromkeys(both("block.ffn.bias"), False),
    **dict.fromkeys(both("block.norm.kind"), "rms"),
}
ROWS = (
    FieldRow("vocab_size", 32128, "vocab_size"),
    FieldRow("d_model", 512, "dim"),
    FieldRow("d_kv", 64, tuple(f"{mixer}.head_dim" for mixer in MIXERS)),
    FieldRow("d_ff", 2048, both("block.ffn.hidden")),
    FieldRow("num_layers", 6, "encoder.depth"),
    FieldRow("num_heads", 8, tuple(f"{mixer}.heads" for mixer in MIXERS)),
    FieldRow("relative_attention_num_buckets", 32, both("block.mixer.relative.buckets")),
    FieldRow("relative_attention_max_distance", 128, both("block.mixer.relative.furthest")),
    FieldRow(
        "dropout_rate",
        0.1,
        (
            *both("block.dropout", "block.ffn.dropout", "entry.dropout"),
            *(f"{mixer}.dropout" for mixer in MIXERS),
        ),
    ),
    FieldRow("layer_norm_epsilon", 1e-6, both("block.norm.eps")),
    FieldRow("n_positions", 512, "context"),
)
FIXED = {"is_encoder_decoder": True}
SIZES = Part({"num_decoder_layers": None}, _read_depth, _write_depth)


def _feed_forward_part(default: str) -> Part:
    return Part(
        {"feed_forward_proj": default, "dense_act_fn": None, "is_gated_act": None},
        _read_feed_forward,
        _write_feed_forward,
    )


FIELDS = FieldTable(
    "T5's config.json",
    CONSTANTS,
    (*ROWS, SIZES, _feed_forward_part("relu"), HEAD, written(**FIXED)),
    FIXED,
    idle=("initializer_factor",),
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


T5 = Family(
    name="t5",
    architecture="T5ForConditionalGeneration",
    fields=FIELDS,
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
    options=FamilyOptions(
        stacks=("encoder", "decoder"),
        norm=RMSNormConfig(),
        ffns=(MLPConfig(), GatedConfig()),
        relatives=(BucketsConfig(),),
    ),
    ids={"eos_token_id": 1, "pad_token_id": 0},
    own_head=("lm_head.weight", "shared.weight"),
)


def _read_scaled_head(f: Fields, data: Data) -> None:
    """Google's files have `tie_word_embeddings = false`.

    Their weights were trained with an untied head without a scale, as in Hugging Face transformers 4. Version 5 always scales, and
    writes true.
    """
    _read_head({**f, "scale_decoder_outputs": None}, data)


UMT5 = replace(
    T5,
    name="umt5",
    architecture="UMT5ForConditionalGeneration",
    fields=FieldTable(
        "UMT5's config.json",
        {**CONSTANTS, **dict.fromkeys(both("block.mixer.relative.shared"), False)},
        (
            *derived(ROWS, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6),
            SIZES,
            _feed_forward_part("gated-gelu"),
            Part({"tie_word_embeddings": True}, _read_scaled_head, lambda config: {"tie_word_embeddings": True}),
            written(**FIXED),
        ),
        FIXED,
        idle=("initializer_factor", "scalable_attention"),  # no version of Hugging Face transformers reads the second
    ),
    table=table("{i}"),
    ids={**T5.ids, "decoder_start_token_id": 0},
)
