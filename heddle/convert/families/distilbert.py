"""DistilBERT (Sanh et al. 2019) in Hugging Face's format: half of BERT's layers, no token types, no pooler."""

from collections.abc import Mapping
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import bert, encoders
from heddle.convert.families.encoders import Encoder, classifier, masked_head
from heddle.convert.families.family import heddle_activation, one_block, published_activation
from heddle.convert.mapping import TensorRow, Vocabulary, pair

EPS = 1e-12  # Hugging Face transformers has no field for it
DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "max_position_embeddings": 512, "n_layers": 6, "n_heads": 12, "dim": 768, "hidden_dim": 3072,
    "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "initializer_range": 0.02,
    "seq_classif_dropout": 0.2, "tie_word_embeddings": True,
}  # fmt: skip
# The file contains the table of positions even if it is sinusoidal. `tie_weights_` is not read.
IDLE = ("sinusoidal_pos_embds", "qa_dropout", "tie_weights_")

LAYER, BLOCK = "distilbert.transformer.layer.{i}.", "encoder.blocks.{i}."
ROWS = (
    *(row for row in encoders.bert_tables("distilbert.") if "token_type" not in row.published),
    *pair(LAYER + "attention.q_lin", BLOCK + "mixer.q"),
    *pair(LAYER + "attention.k_lin", BLOCK + "mixer.k"),
    *pair(LAYER + "attention.v_lin", BLOCK + "mixer.v"),
    *pair(LAYER + "attention.out_lin", BLOCK + "mixer.o"),
    *pair(LAYER + "sa_layer_norm", BLOCK + "mixer_residual.outside"),
    *pair(LAYER + "ffn.lin1", BLOCK + "ffn.up"),
    *pair(LAYER + "ffn.lin2", BLOCK + "ffn.down"),
    *pair(LAYER + "output_layer_norm", BLOCK + "ffn_residual.outside"),
)


def config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, as the data of a heddle config without a head."""
    norm = {"kind": "layer", "eps": EPS}
    block = {
        "mixer": {"kind": "attention", "heads": f["n_heads"], "dropout": f["attention_dropout"]},
        "ffn": {
            "kind": "mlp",
            "hidden": f["hidden_dim"],
            "activation": heddle_activation(f["activation"], "activation"),
        },
        "norm": norm,
        "placement": "post",
        "dropout": f["dropout"],
    }
    return {
        "vocab_size": f["vocab_size"],
        "dim": f["dim"],
        "context": f["max_position_embeddings"],
        "encoder": {
            "depth": f["n_layers"],
            "block": block,
            "entry": {"positions": "learned", "norm": norm, "dropout": f["dropout"]},
        },
        "initial": {"std": f["initializer_range"]},
    }


def published_fields(config: TransformerConfig) -> dict[str, Any]:
    """The fields of the nearest DistilBERT."""
    block = one_block(config, "encoder")
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "n_layers": config.stacks()["encoder"].depth,
        "n_heads": block.mixer.heads,
        "dim": config.dim,
        "hidden_dim": block.ffn.width(config.dim),
        "dropout": block.dropout,
        "attention_dropout": block.mixer.dropout,
        "activation": published_activation(block.ffn.activation),
        "initializer_range": config.initial.std,
    }


ENCODER = Encoder(
    name="distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    layers="transformer.layer.{i}.",
    defaults=DEFAULTS,
    config_data=config_data,
    published_fields=published_fields,
    rows=ROWS,
    options=bert.OPTIONS,
    idle=IDLE,
    ids={"pad_token_id": 0},
    rate="seq_classif_dropout",
    copies={"vocab_projector.weight": ("distilbert.embeddings.word_embeddings.weight",)},
)
DISTILBERTS = (
    ENCODER.family(
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
    ENCODER.family(
        "ForSequenceClassification",
        lambda f: classifier(f, f["seq_classif_dropout"], pooling="first", dense=True, activation="relu"),
        (*pair("pre_classifier", "head.pooler.dense"), *encoders.TAGS),
        encoders.USUAL_CLASSES,
    ),
    ENCODER.family(
        "ForTokenClassification",
        lambda f: classifier(f, f["dropout"], pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
    ),
    ENCODER.family("Model", encoders.no_head, (), encoders.BARE),
)
