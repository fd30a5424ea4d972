"""BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018) in Hugging Face's format.

BART is post-norm and has a table of positions with an offset of two rows. Marian is Vaswani's Transformer, with all sines before
all cosines.
"""

from dataclasses import replace

import torch

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.convert.families.family import Family, FamilyOptions, Tensors
from heddle.convert.fields import ACTIVATION, Data, FieldRow, Fields, FieldTable, Part, both, derived, written
from heddle.convert.mapping import Names, OneRow, TensorRow, Vocabulary, pair, pairs
from heddle.errors import HeddleError

EPS = 1e-5  # Hugging Face transformers has no field for it
NEVER = -1e4  # a finite logit for an id without a probability
CONSTANTS: Fields = {
    **dict.fromkeys(both("block.ffn.kind"), "mlp"),
    **dict.fromkeys(both("block.norm.kind"), "layer"),
    **dict.fromkeys(both("block.norm.eps"), EPS),
    **dict.fromkeys(both("block.placement"), "post"),
    "head.bias": True,
}
ROWS = (
    FieldRow("vocab_size", 50265, "vocab_size"),
    FieldRow("max_position_embeddings", 1024, "context"),
    FieldRow("encoder_layers", 12, "encoder.depth"),
    FieldRow("encoder_ffn_dim", 4096, "encoder.block.ffn.hidden"),
    FieldRow("encoder_attention_heads", 16, "encoder.block.mixer.heads"),
    FieldRow("decoder_layers", 12, "decoder.depth"),
    FieldRow("decoder_ffn_dim", 4096, "decoder.block.ffn.hidden"),
    FieldRow("decoder_attention_heads", 16, ("decoder.block.mixer.heads", "decoder.block.cross.heads")),
    FieldRow("activation_function", "gelu", both("block.ffn.activation"), ACTIVATION),
    FieldRow("d_model", 1024, "dim"),
    FieldRow("dropout", 0.1, both("block.dropout", "entry.dropout")),
    FieldRow("attention_dropout", 0.0, (*both("block.mixer.dropout"), "decoder.block.cross.dropout")),
    FieldRow("activation_dropout", 0.0, both("block.ffn.dropout")),
    FieldRow("init_std", 0.02, "initial.std"),
    FieldRow("scale_embedding", False, both("entry.scale")),
    FieldRow("tie_word_embeddings", True, "head.tied"),
)
# Older files also have these: where norms are placed, and fields that repeat others.
FIXED = {"is_encoder_decoder": True, "normalize_before": False, "add_final_layer_norm": False}
IDLE = (
    "num_hidden_layers", "add_bias_logits", "classif_dropout", "bad_words_ids", "extra_pos_embeddings", "_num_labels",
)  # fmt: skip
FORCES_BEGIN = "force_bos_token_to_be_generated"
# Written for CTranslate2; Hugging Face transformers does not have these fields.
BART_FIXED = {**FIXED, "normalize_embedding": True, "static_position_embeddings": False}
MARIAN_FIXED = {**FIXED, "normalize_embedding": False, "static_position_embeddings": True}
BART_IDS = {
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip


def _read_tables(f: Fields, data: Data) -> None:
    """An untied head unties encoder and decoder, too."""
    data["source_vocab_size"] = None if f["tie_word_embeddings"] else f["vocab_size"]


def _repeated(published: Fields) -> tuple[str, ...]:
    """The other name of forced_bos_token_id in older files, if it repeats it."""
    repeated = published.get("forced_bos_token_id") == published.get("bos_token_id", BART_IDS["bos_token_id"])
    return (FORCES_BEGIN,) if repeated or not published.get(FORCES_BEGIN) else ()


BART_FIELDS = FieldTable(
    "BART's config.json",
    {
        **CONSTANTS,
        **dict.fromkeys(both("entry.positions"), "learned"),
        **dict.fromkeys(both("entry.offset"), 2),
        **dict.fromkeys(both("entry.norm.kind"), "layer"),
        **dict.fromkeys(both("entry.norm.eps"), EPS),
    },
    (*ROWS, Part({}, _read_tables), written(**BART_FIXED)),
    BART_FIXED,
    IDLE,
    _repeated,
)

LAYERS = {"encoder": "model.encoder.layers.{i}.", "decoder": "model.decoder.layers.{i}."}
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


def _stack(stack: str) -> tuple[TensorRow, ...]:
    published, heddle = LAYERS[stack], f"{stack}.blocks.{{i}}."
    return (
        *pairs(published + "self_attn.", heddle + "mixer.", PROJECTIONS),
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
    *pairs(LAYERS["decoder"] + "encoder_attn.", "decoder.blocks.{i}.cross.", PROJECTIONS),
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


def with_bias_and_tables(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """An equivalent model with a bias on the scores, and with two token tables if the head is untied."""
    head, table = config.head, tensors.get("embedding.weight")  # absent when only the config is rewritten
    if not isinstance(head, LanguageHeadConfig) or len(config.stacks()) < 2:
        return config, tensors
    changes: Data = {}
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
    architecture="BartForConditionalGeneration",
    fields=BART_FIELDS,
    table=TABLE,
    names=NAMES,
    layers=LAYERS,
    options=FamilyOptions(stacks=("encoder", "decoder"), norm=LayerNormConfig(), ffns=(MLPConfig(),)),
    ids=BART_IDS,
    rewrite=with_bias_and_tables,
    simplify=without_zeros,
)


def _read_two_tables(f: Fields, data: Data) -> None:
    """The sizes of the tables.

    Raises:
        HeddleError: one table would have two sizes.
    """
    source, target = f["vocab_size"], f["vocab_size"] if f["decoder_vocab_size"] is None else f["decoder_vocab_size"]
    shared = f["share_encoder_decoder_embeddings"]
    if shared and source != target:
        raise HeddleError(
            f"decoder_vocab_size = {target!r} in config.json, but share_encoder_decoder_embeddings means one table of "
            f"vocab_size = {source!r}"
        )
    data["vocab_size"] = target
    data["source_vocab_size"] = None if shared and f["tie_word_embeddings"] else source


def _write_two_tables(config: TransformerConfig) -> Data:
    return {
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": one_table(config),
    }


MARIAN_FIELDS = FieldTable(
    "Marian's config.json",
    {**CONSTANTS, **dict.fromkeys(both("entry.positions"), "sinusoidal_halves")},
    (
        *derived(ROWS, ("vocab_size",)),
        Part(
            {"vocab_size": 58101, "decoder_vocab_size": None, "share_encoder_decoder_embeddings": True},
            _read_two_tables,
            _write_two_tables,
        ),
        written(**MARIAN_FIXED),
    ),
    MARIAN_FIXED,
    IDLE,
)


def start_from_zero(config: TransformerConfig, tensors: Tensors, start: int) -> tuple[TransformerConfig, Tensors]:
    """An equivalent Marian whose decoder starts with a zero vector, as in published models, which other readers rely on.

    The vector c that the decoder starts with is subtracted from its whole table. The first layer makes up for it: the biases of its
    queries, keys and values get W c, and the bias of the attention's output gets c, which restores the residual. A tied head lowers
    all logits at a position by the same number, which changes no probability.
    """
    count, rewritten = config.vocab_size, dict(tensors)
    start_vector = tensors["embedding.weight"][start]
    stacks = ("encoder", "decoder") if one_table(config) else ("decoder",)
    for name in stacks:
        scaled = start_vector * (config.dim**0.5 if config.stacks()[name].entry.scale else 1.0)
        first = f"{name}.blocks.0.mixer."
        for part in "qkv":
            rewritten[f"{first}{part}.bias"] = (
                tensors[f"{first}{part}.bias"] + tensors[f"{first}{part}.weight"] @ scaled
            )
        rewritten[f"{first}o.bias"] = tensors[f"{first}o.bias"] + scaled
    for name in ("embedding.weight", "source_embedding.weight", "head.weight"):
        if name in tensors:
            table = tensors[name][:count]
            table = table - start_vector if name == "embedding.weight" else table
            rewritten[name] = torch.cat((table, table.new_zeros(1, config.dim)))
    bias = tensors["head.bias"][:count]
    rewritten["head.bias"] = torch.cat((bias, bias.new_full((1,), NEVER)))
    sizes = {"vocab_size": count + 1, "pad_vocab_to": 1}
    more = {} if one_table(config) else {"source_vocab_size": count + 1}
    return config.override({**sizes, **more}), rewritten


MARIAN = replace(
    BART,
    name="marian",
    architecture="MarianMTModel",
    fields=MARIAN_FIELDS,
    start_from_zero=start_from_zero,
    ids={"eos_token_id": 0, "pad_token_id": 58100, "decoder_start_token_id": 58100, "forced_eos_token_id": 0},
    table=(replace(SHARED_TABLE, when=one_table), *SHARED),
    names=replace(
        NAMES,
        # Older files contain sines and cosines. The shared table is not read if there are two tables.
        ignorable=(
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
            "model.shared.weight",
        ),
    ),
)
