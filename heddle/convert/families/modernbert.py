"""ModernBERT (Warner et al. 2024) in Hugging Face's format, with its masked LM head: an encoder with gated feed-forwards, and a
window in most layers."""

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers
from heddle.convert.families.encoders import has_own_table
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import (
    ACTIVATION,
    BIAS,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    one_block,
    setting,
    written,
)
from heddle.convert.mapping import Fused, Names, TensorRow, Vocabulary, fused, pair
from heddle.errors import HeddleError

GLOBAL, LOCAL, PERIOD = 160_000.0, 10_000.0, 3
VISIBLE = 128  # tokens on both sides


def _read_biases(f: Fields, data: Data) -> None:
    if f["classifier_bias"] != f["norm_bias"]:
        raise HeddleError(
            "classifier_bias and norm_bias differ in config.json: heddle's head has both biases or neither"
        )


def _write_biases(config: TransformerConfig) -> Data:
    return {"classifier_bias": setting(config, "encoder.block.norm.bias")}


def _read_positions(f: Fields, data: Data) -> None:
    stack, visible = data["encoder"], f["local_attention"]
    if not isinstance(visible, int):
        raise HeddleError(f"local_attention = {visible!r} in config.json: must be a whole number")
    global_rotary, local_rotary = layers.read_rotaries(
        {**f, "rope_scaling": None}, ("global_rope_theta", GLOBAL), ("local_rope_theta", LOCAL)
    )
    period = layers.period(f["global_attn_every_n_layers"], "global_attn_every_n_layers")
    default_local = [number for number in layers.numbers(stack["depth"]) if number % period]
    places = layers.local_layers(f["layer_types"], stack["depth"], default_local)
    # local_attention counts the visible tokens on both sides, heddle's window those on one side and the token itself.
    layers.set_local_and_global(stack, places, visible // 2 + 1, global_rotary, local_rotary)
    layers.changed(stack, layers.numbers(stack["depth"])[:1], {"placement": "pre_ffn"})  # the entry's norm comes before


def _write_positions(config: TransformerConfig) -> Data:
    stack, width = config.stacks()["encoder"], one_block(config, "encoder").mixer.width(config.dim)
    window, types = layers.windows_and_types(stack)
    rotaries = layers.rotary_fields(stack, width, GLOBAL, LOCAL)
    return {
        "layer_types": types,
        "rope_parameters": {name: each["rope_parameters"] for name, each in rotaries.items()},
        "global_rope_theta": rotaries[layers.FULL]["rope_theta"],
        "local_rope_theta": rotaries[layers.LOCAL]["rope_theta"],
        "local_attention": VISIBLE if window is None else 2 * (window - 1),
    }


FIELDS = FieldTable(
    "ModernBERT's config.json",
    {
        "encoder.block.ffn.kind": "gated",
        "encoder.block.norm.kind": "layer",
        "encoder.entry.norm.kind": "layer",
        "encoder.final_norm": True,
        "head.transform": True,
    },
    (
        FieldRow("vocab_size", 50368, "vocab_size"),
        FieldRow("hidden_size", 768, "dim"),
        FieldRow("intermediate_size", 1152, "encoder.block.ffn.hidden"),
        FieldRow("num_hidden_layers", 22, "encoder.depth"),
        FieldRow("num_attention_heads", 12, "encoder.block.mixer.heads"),
        FieldRow("hidden_activation", "gelu", "encoder.block.ffn.activation", ACTIVATION),
        FieldRow("max_position_embeddings", 8192, "context"),
        FieldRow("initializer_range", 0.02, "initial.std"),
        FieldRow("norm_eps", 1e-5, ("encoder.block.norm.eps", "encoder.entry.norm.eps", "head.eps")),
        FieldRow("norm_bias", False, ("encoder.block.norm.bias", "encoder.entry.norm.bias", "head.transform_bias")),
        FieldRow("attention_bias", False, "encoder.block.mixer.bias", BIAS),
        written(attention_dropout=0.0),
        Part(
            {
                "layer_types": None, "rope_parameters": None, "global_rope_theta": None, "local_rope_theta": None,
                "local_attention": VISIBLE, "global_attn_every_n_layers": PERIOD,
            },
            _read_positions,
            _write_positions,
        ),
        FieldRow("embedding_dropout", 0.0, "encoder.entry.dropout"),
        FieldRow("mlp_bias", False, "encoder.block.ffn.bias"),
        FieldRow("mlp_dropout", 0.0, "encoder.block.ffn.dropout"),
        FieldRow("decoder_bias", True, "head.bias"),
        Part({"classifier_bias": False}, _read_biases, _write_biases),
        FieldRow("classifier_activation", "gelu", "head.activation", ACTIVATION),
        FieldRow("tie_word_embeddings", True, "head.tied"),
    ),
    # attention_dropout would also apply to the output of attention; in heddle, all branches have dropout or none.
    fixed={"attention_dropout": 0.0, "rope_scaling": None, "partial_rotary_factor": 1.0},
    # Initial values, other heads, implementations, and fields of older files that are not read.
    idle=(
        "initializer_cutoff_factor", "classifier_pooling", "cls_token_id", "deterministic_flash_attn", "sparse_prediction",
        "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "layer_norm_eps",
        "position_embedding_type",
    ),
)  # fmt: skip

LAYER, BLOCK = "model.layers.{i}.", "encoder.blocks.{i}."


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
    TensorRow("decoder.weight", ("head.weight",), Vocabulary(), when=has_own_table),
    TensorRow("decoder.bias", ("head.bias",), Vocabulary()),
)
MODERNBERT = Family(
    name="modernbert",
    architecture="ModernBertForMaskedLM",
    fields=FIELDS,
    table=TABLE,
    names=Names(prefix="model.", copies={"decoder.weight": ("model.embeddings.tok_embeddings.weight",)}),
    layers={"encoder": LAYER},
    options=FamilyOptions(
        stacks=("encoder",), norm=LayerNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),)
    ),
    ids={"bos_token_id": 50281, "eos_token_id": 50282, "pad_token_id": 50283},
)
