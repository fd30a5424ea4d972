"""OPT (Zhang et al. 2022) in Hugging Face's format: a decoder whose table of positions has an offset of two rows."""

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import ACTIVATION, BIAS, Data, FieldRow, Fields, FieldTable, Part, one_block
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pair, pairs
from heddle.errors import HeddleError


def _before(config: TransformerConfig) -> bool:
    return bool(one_block(config).placement == "pre")


def _after(config: TransformerConfig) -> bool:
    return not _before(config)


def _read_norms(f: Fields, data: Data) -> None:
    before = bool(f["do_layer_norm_before"])
    data["decoder"]["block"]["placement"] = "pre" if before else "post"
    data["decoder"]["final_norm"] = before and not f["_remove_final_layer_norm"]


def _write_norms(config: TransformerConfig) -> Data:
    before = _before(config)
    final = config.stacks()["decoder"].ends_in_norm()
    return {"do_layer_norm_before": before, "_remove_final_layer_norm": before and not final}


def _check_width(f: Fields, data: Data) -> None:
    """Refuse token vectors narrower than the model."""
    width = f["word_embed_proj_dim"]
    if width not in (None, f["hidden_size"]):
        raise HeddleError(
            f"word_embed_proj_dim = {width!r} in config.json: heddle has no projection of token vectors, so it must be "
            f"hidden_size = {f['hidden_size']!r}"
        )


FIELDS = FieldTable(
    "OPT's config.json",
    {
        "decoder.block.ffn.kind": "mlp",
        "decoder.block.norm.kind": "layer",
        "decoder.block.norm.eps": 1e-5,  # Hugging Face transformers has no field for it
        "decoder.entry.positions": "learned",
        "decoder.entry.offset": 2,
    },
    (
        FieldRow("vocab_size", 50272, "vocab_size"),
        FieldRow("hidden_size", 768, "dim"),
        FieldRow("num_hidden_layers", 12, "decoder.depth"),
        FieldRow("ffn_dim", 3072, "decoder.block.ffn.hidden"),
        FieldRow("max_position_embeddings", 2048, "context"),
        Part({"do_layer_norm_before": True, "_remove_final_layer_norm": False}, _read_norms, _write_norms),
        Part({"word_embed_proj_dim": None}, _check_width, lambda config: {"word_embed_proj_dim": config.dim}),
        FieldRow("dropout", 0.1, "decoder.block.dropout"),
        FieldRow("attention_dropout", 0.0, "decoder.block.mixer.dropout"),
        FieldRow("num_attention_heads", 12, "decoder.block.mixer.heads"),
        FieldRow("activation_function", "relu", "decoder.block.ffn.activation", ACTIVATION),
        FieldRow("init_std", 0.02, "initial.std"),
        FieldRow("enable_bias", True, ("decoder.block.mixer.bias", "decoder.block.ffn.bias"), BIAS),
        FieldRow("tie_word_embeddings", True, "head.tied"),
    ),
    fixed={"layer_norm_elementwise_affine": True},
    idle=("activation_dropout",),  # in older files; no version of Hugging Face transformers reads it
)

LAYER, BLOCK = "model.decoder.layers.{i}.", "decoder.blocks.{i}."
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
OPT = Family(
    name="opt",
    architecture="OPTForCausalLM",
    fields=FIELDS,
    table=(
        TensorRow("model.decoder.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
        TensorRow("model.decoder.embed_positions.weight", ("decoder.entry.positions.weight",)),
        *pair(LAYER + "self_attn_layer_norm", BLOCK + "mixer_residual.before", when=_before),
        *pair(LAYER + "self_attn_layer_norm", BLOCK + "mixer_residual.outside", when=_after),
        *pairs(LAYER + "self_attn.", BLOCK + "mixer.", PROJECTIONS),
        *pair(LAYER + "final_layer_norm", BLOCK + "ffn_residual.before", when=_before),
        *pair(LAYER + "final_layer_norm", BLOCK + "ffn_residual.outside", when=_after),
        *pair(LAYER + "fc1", BLOCK + "ffn.up"),
        *pair(LAYER + "fc2", BLOCK + "ffn.down"),
        *pair("model.decoder.final_layer_norm", "decoder.final_norm"),
        TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
    ),
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.decoder.embed_tokens.weight",)}),
    layers={"decoder": LAYER},
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),)),
    ids={"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
)
