"""BERT (Devlin et al. 2019), DistilBERT (Sanh et al. 2019) and ELECTRA (Clark et al. 2020) in Hugging Face's format.

DistilBERT has half of BERT's layers, no token types and no pooler. ELECTRA was trained to detect replaced tokens, and its token
vectors may be narrower than the model.
"""

from dataclasses import replace
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import encoders
from heddle.convert.families.encoders import Encoder, classifier, has_own_table, masked_head
from heddle.convert.families.family import FamilyOptions
from heddle.convert.fields import (
    ACTIVATION,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    heddle_activation,
    setting,
)
from heddle.convert.mapping import TensorRow, Vocabulary, pair

CONSTANTS: Fields = {
    "encoder.block.ffn.kind": "mlp",
    "encoder.block.norm.kind": "layer",
    "encoder.block.placement": "post",
    "encoder.entry.positions": "learned",
    "encoder.entry.norm.kind": "layer",
}
ROWS = (
    FieldRow("vocab_size", 30522, "vocab_size"),
    FieldRow("hidden_size", 768, "dim"),
    FieldRow("num_hidden_layers", 12, "encoder.depth"),
    FieldRow("num_attention_heads", 12, "encoder.block.mixer.heads"),
    FieldRow("intermediate_size", 3072, "encoder.block.ffn.hidden"),
    FieldRow("hidden_act", "gelu", "encoder.block.ffn.activation", ACTIVATION),
    FieldRow("hidden_dropout_prob", 0.1, ("encoder.block.dropout", "encoder.entry.dropout")),
    FieldRow("attention_probs_dropout_prob", 0.1, "encoder.block.mixer.dropout"),
    FieldRow("max_position_embeddings", 512, "context"),
    FieldRow("type_vocab_size", 2, "encoder.entry.types"),
    FieldRow("initializer_range", 0.02, "initial.std"),
    FieldRow("layer_norm_eps", 1e-12, ("encoder.block.norm.eps", "encoder.entry.norm.eps")),
)
FIELDS = FieldTable(
    "",
    CONSTANTS,
    ROWS,
    fixed={"position_embedding_type": "absolute", "is_decoder": False},  # with is_decoder, a BERT is causal
)
OF_HEADS: Fields = {"tie_word_embeddings": True, "classifier_dropout": None}
OPTIONS = FamilyOptions(stacks=("encoder",), norm=LayerNormConfig(), ffns=(MLPConfig(),))


def rate(f: Fields) -> Any:
    """The dropout of a classifier."""
    return f["hidden_dropout_prob"] if f["classifier_dropout"] is None else f["classifier_dropout"]


ENCODER = Encoder(
    name="bert",
    classes="Bert",
    prefix="bert.",
    layers="encoder.layer.{i}.",
    fields=FIELDS,
    rows=(*encoders.bert_tables("bert."), *encoders.bert_layers("bert.")),
    options=OPTIONS,
    of_heads=OF_HEADS,
    ids={"pad_token_id": 0},
    rate="classifier_dropout",
    copies={
        "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight",),
        "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    },
    instead={"cls.predictions.decoder.bias": "cls.predictions.bias"},
)
# Published files often contain the other heads of pretraining.
PRETRAINING = tuple(f"cls.seq_relationship.{part}" for part in ("weight", "bias"))

BERTS = (
    ENCODER.family(
        "ForMaskedLM",
        lambda f: masked_head(
            heddle_activation(f["hidden_act"], "hidden_act"), f["layer_norm_eps"], f["tie_word_embeddings"]
        ),
        (
            # An untied head does not read this bias, but the next one.
            TensorRow("cls.predictions.bias", ("head.bias",), Vocabulary()),
            TensorRow("cls.predictions.decoder.bias", ("head.bias",), Vocabulary(), when=has_own_table),
            *pair("cls.predictions.transform.dense", "head.dense"),
            *pair("cls.predictions.transform.LayerNorm", "head.norm"),
            TensorRow("cls.predictions.decoder.weight", ("head.weight",), Vocabulary()),
        ),
        encoders.USUAL_MASKED,
        also=("BertForPreTraining",),
        unread=(*ENCODER.pooler(), *PRETRAINING),
    ),
    ENCODER.family(
        "ForSequenceClassification",
        lambda f: classifier(f, rate(f), pooling="first", dense=True),
        (*pair("bert.pooler.dense", "head.pooler.dense"), *encoders.TAGS),
        encoders.USUAL_CLASSES,
    ),
    ENCODER.family(
        "ForTokenClassification",
        lambda f: classifier(f, rate(f), pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
        unread=ENCODER.pooler(),
    ),
    ENCODER.family("Model", encoders.pooled_head, encoders.POOLER, encoders.USUAL_POOLED),
)

EPS = 1e-12  # of DistilBERT; Hugging Face transformers has no field for it
LAYER, BLOCK = "distilbert.transformer.layer.{i}.", "encoder.blocks.{i}."
DISTIL = Encoder(
    name="distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    layers="transformer.layer.{i}.",
    fields=FieldTable(
        "",
        {**CONSTANTS, "encoder.block.norm.eps": EPS, "encoder.entry.norm.eps": EPS},
        (
            FieldRow("vocab_size", 30522, "vocab_size"),
            FieldRow("max_position_embeddings", 512, "context"),
            FieldRow("n_layers", 6, "encoder.depth"),
            FieldRow("n_heads", 12, "encoder.block.mixer.heads"),
            FieldRow("dim", 768, "dim"),
            FieldRow("hidden_dim", 3072, "encoder.block.ffn.hidden"),
            FieldRow("dropout", 0.1, ("encoder.block.dropout", "encoder.entry.dropout")),
            FieldRow("attention_dropout", 0.1, "encoder.block.mixer.dropout"),
            FieldRow("activation", "gelu", "encoder.block.ffn.activation", ACTIVATION),
            FieldRow("initializer_range", 0.02, "initial.std"),
        ),
        # The file contains the table of positions even if it is sinusoidal. `tie_weights_` is not read.
        idle=("sinusoidal_pos_embds", "qa_dropout", "tie_weights_"),
    ),
    rows=(
        *(row for row in encoders.bert_tables("distilbert.") if "token_type" not in row.published),
        *pair(LAYER + "attention.q_lin", BLOCK + "mixer.q"),
        *pair(LAYER + "attention.k_lin", BLOCK + "mixer.k"),
        *pair(LAYER + "attention.v_lin", BLOCK + "mixer.v"),
        *pair(LAYER + "attention.out_lin", BLOCK + "mixer.o"),
        *pair(LAYER + "sa_layer_norm", BLOCK + "mixer_residual.outside"),
        *pair(LAYER + "ffn.lin1", BLOCK + "ffn.up"),
        *pair(LAYER + "ffn.lin2", BLOCK + "ffn.down"),
        *pair(LAYER + "output_layer_norm", BLOCK + "ffn_residual.outside"),
    ),
    options=OPTIONS,
    of_heads={"tie_word_embeddings": True, "seq_classif_dropout": 0.2},
    ids={"pad_token_id": 0},
    rate="seq_classif_dropout",
    copies={"vocab_projector.weight": ("distilbert.embeddings.word_embeddings.weight",)},
)
DISTILBERTS = (
    DISTIL.family(
        "ForMaskedLM",
        lambda f: masked_head(heddle_activation(f["activation"], "activation"), EPS, f["tie_word_embeddings"]),
        (
            TensorRow("vocab_projector.bias", ("head.bias",), Vocabulary()),
            *pair("vocab_transform", "head.dense"),
            *pair("vocab_layer_norm", "head.norm"),
            TensorRow("vocab_projector.weight", ("head.weight",), Vocabulary()),
        ),
        encoders.USUAL_MASKED,
    ),
    DISTIL.family(
        "ForSequenceClassification",
        lambda f: classifier(f, f["seq_classif_dropout"], pooling="first", dense=True, activation="relu"),
        (*pair("pre_classifier", "head.pooler.dense"), *encoders.TAGS),
        encoders.USUAL_CLASSES,
    ),
    DISTIL.family(
        "ForTokenClassification",
        lambda f: classifier(f, f["dropout"], pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
    ),
    DISTIL.family("Model", encoders.no_head, (), encoders.BARE),
)


def _read_width(f: Fields, data: Data) -> None:
    width = f["embedding_size"]
    data["encoder"]["entry"]["token_dim"] = None if width == f["hidden_size"] else width


def _write_width(config: TransformerConfig) -> Data:
    return {"embedding_size": setting(config, "encoder.entry.token_dim")}


REPLACED = Encoder(
    name="electra",
    classes="Electra",
    prefix="electra.",
    layers="encoder.layer.{i}.",
    fields=replace(
        FIELDS,
        rows=(
            *derived(ROWS, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
            Part({"embedding_size": 128}, _read_width, _write_width),
        ),
        idle=("summary_last_dropout",),  # of a class for multiple choice
    ),
    rows=(
        *encoders.bert_tables("electra."),
        *pair("electra.embeddings_project", "encoder.entry.project"),
        *encoders.bert_layers("electra."),
    ),
    options=OPTIONS,
    of_heads=OF_HEADS,
    ids={"pad_token_id": 0},
    rate="classifier_dropout",
    copies={"generator_lm_head.weight": ("electra.embeddings.word_embeddings.weight",)},
)
DISCRIMINATOR = tuple(
    f"discriminator_predictions.{name}.{part}" for name in ("dense", "dense_prediction") for part in ("weight", "bias")
)
ELECTRAS = (
    REPLACED.family(
        "ForMaskedLM",
        lambda f: masked_head("gelu", f["layer_norm_eps"], f["tie_word_embeddings"]),
        (
            TensorRow("generator_lm_head.bias", ("head.bias",), Vocabulary()),
            *pair("generator_predictions.dense", "head.dense"),
            *pair("generator_predictions.LayerNorm", "head.norm"),
            TensorRow("generator_lm_head.weight", ("head.weight",), Vocabulary()),
        ),
        encoders.USUAL_MASKED,
    ),
    REPLACED.family(
        "ForSequenceClassification",
        lambda f: classifier(f, rate(f), pooling="first", dense=True, activation="gelu"),
        encoders.ROBERTA_CLASSES,
        encoders.USUAL_CLASSES,
    ),
    REPLACED.family(
        "ForTokenClassification",
        lambda f: classifier(f, rate(f), pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
    ),
    # Most published files contain the encoder, and its head for replaced tokens, which only pretraining uses.
    REPLACED.family(
        "Model", encoders.no_head, (), encoders.BARE, also=("ElectraForPreTraining",), unread=DISCRIMINATOR
    ),
)
