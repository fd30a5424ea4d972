"""BERT (Devlin et al. 2019) in Hugging Face's format: with its pooler, a classifier of texts or tokens, or its masked LM head."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import encoders
from heddle.convert.families.encoders import Encoder, classifier, has_own_table, masked_head
from heddle.convert.families.family import FamilyOptions, heddle_activation, one_block, published_activation
from heddle.convert.mapping import TensorRow, Vocabulary, pair

DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True, "classifier_dropout": None,
}  # fmt: skip
# With is_decoder, a BERT is causal.
FIXED = {"position_embedding_type": "absolute", "is_decoder": False}
OPTIONS = FamilyOptions(stacks=("encoder",), norm=LayerNormConfig(), ffns=(MLPConfig(),))


def config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that BERT and related families share, as the data of a heddle config without a head."""
    norm = {"kind": "layer", "eps": f["layer_norm_eps"]}
    rate = f["hidden_dropout_prob"]
    block = {
        "mixer": {"kind": "attention", "heads": f["num_attention_heads"], "dropout": f["attention_probs_dropout_prob"]},
        "ffn": {
            "kind": "mlp",
            "hidden": f["intermediate_size"],
            "activation": heddle_activation(f["hidden_act"], "hidden_act"),
        },
        "norm": norm,
        "placement": "post",
        "dropout": rate,
    }
    entry = {"positions": "learned", "types": f["type_vocab_size"], "norm": norm, "dropout": rate}
    return {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "encoder": {"depth": f["num_hidden_layers"], "block": block, "entry": entry},
        "initial": {"std": f["initializer_range"]},
    }


def published_fields(config: TransformerConfig) -> dict[str, Any]:
    """The fields that `config_data` reads, of the nearest BERT."""
    block, stack = one_block(config, "encoder"), config.stacks()["encoder"]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": stack.depth,
        "num_attention_heads": block.mixer.heads,
        "intermediate_size": block.ffn.width(config.dim),
        "hidden_act": published_activation(block.ffn.activation),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.mixer.dropout,
        "max_position_embeddings": config.context,
        "type_vocab_size": stack.entry.types,
        "initializer_range": config.initial.std,
        "layer_norm_eps": block.norm.eps,
    }


def rate(f: Mapping[str, Any]) -> Any:
    """The dropout of a classifier."""
    return f["hidden_dropout_prob"] if f["classifier_dropout"] is None else f["classifier_dropout"]


ENCODER = Encoder(
    name="bert",
    classes="Bert",
    prefix="bert.",
    layers="encoder.layer.{i}.",
    defaults=DEFAULTS,
    config_data=config_data,
    published_fields=published_fields,
    rows=(*encoders.bert_tables("bert."), *encoders.bert_layers("bert.")),
    options=OPTIONS,
    fixed=FIXED,
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

BERT = ENCODER.family(
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
)
BERT_CLASSIFIER = ENCODER.family(
    "ForSequenceClassification",
    lambda f: classifier(f, rate(f), pooling="first", dense=True),
    (*pair("bert.pooler.dense", "head.pooler.dense"), *encoders.TAGS),
    encoders.USUAL_CLASSES,
)
BERT_TAGGED = ENCODER.family(
    "ForTokenClassification",
    lambda f: classifier(f, rate(f), pooling="none"),
    encoders.TAGS,
    encoders.USUAL_TAGS,
    unread=ENCODER.pooler(),
)
BERT_POOLED = ENCODER.family("Model", encoders.pooled_head, encoders.POOLER, encoders.USUAL_POOLED)
