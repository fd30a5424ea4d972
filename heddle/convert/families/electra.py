"""ELECTRA (Clark et al. 2020) in Hugging Face's format: a BERT trained to detect replaced tokens, whose token vectors may be
narrower than the model."""

from collections.abc import Mapping
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import bert, encoders
from heddle.convert.families.encoders import Encoder, classifier, masked_head
from heddle.convert.mapping import TensorRow, Vocabulary, pair

DEFAULTS: dict[str, Any] = {
    **bert.DEFAULTS, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
}  # fmt: skip
IDLE = ("summary_last_dropout",)  # of a class for multiple choice
ROWS = (
    *encoders.bert_tables("electra."),
    *pair("electra.embeddings_project", "encoder.entry.project"),
    *encoders.bert_layers("electra."),
)


def _config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    data = bert.config_data(f)
    width = f["embedding_size"]
    data["encoder"]["entry"]["token_dim"] = None if width == f["hidden_size"] else width
    return data


def _published_fields(config: TransformerConfig) -> dict[str, Any]:
    return {**bert.published_fields(config), "embedding_size": config.stacks()["encoder"].entry.tokens_dim(config.dim)}


ENCODER = Encoder(
    name="electra",
    classes="Electra",
    prefix="electra.",
    layers="encoder.layer.{i}.",
    defaults=DEFAULTS,
    config_data=_config_data,
    published_fields=_published_fields,
    rows=ROWS,
    options=bert.OPTIONS,
    fixed=bert.FIXED,
    idle=IDLE,
    ids={"pad_token_id": 0},
    rate="classifier_dropout",
    copies={"generator_lm_head.weight": ("electra.embeddings.word_embeddings.weight",)},
)
DISCRIMINATOR = tuple(
    f"discriminator_predictions.{name}.{part}" for name in ("dense", "dense_prediction") for part in ("weight", "bias")
)
ELECTRAS = (
    ENCODER.family(
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
    ENCODER.family(
        "ForSequenceClassification",
        lambda f: classifier(f, bert.rate(f), pooling="first", dense=True, activation="gelu"),
        encoders.ROBERTA_CLASSES,
        encoders.USUAL_CLASSES,
    ),
    ENCODER.family(
        "ForTokenClassification",
        lambda f: classifier(f, bert.rate(f), pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
    ),
    # Most published files contain the encoder, and its head for replaced tokens, which only pretraining uses.
    ENCODER.family("Model", encoders.no_head, (), encoders.BARE, also=("ElectraForPreTraining",), unread=DISCRIMINATOR),
)
