"""MPNet (Song et al. 2020) in Hugging Face's format: a RoBERTa without token types, with T5's relative positions in addition to its
learned positions."""

from collections.abc import Mapping
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.config.positions import BucketsConfig
from heddle.convert.families import bert, encoders
from heddle.convert.families.encoders import Encoder, classifier, masked_head
from heddle.convert.families.family import FamilyOptions, without
from heddle.convert.families.roberta import ROBERTA_IDS, offset_positions, position_fields
from heddle.convert.mapping import TensorRow, pair

DEFAULTS: dict[str, Any] = {
    **without(bert.DEFAULTS, "type_vocab_size", "classifier_dropout"), "vocab_size": 30527,
}  # fmt: skip
PADDING = 1  # Hugging Face transformers counts positions from it, regardless of config.json
BUCKETS = 32  # likewise fixed: the table may have more rows, which are not read
FIXED = {**bert.FIXED, "pad_token_id": PADDING, "relative_attention_num_buckets": BUCKETS}
OPTIONS = FamilyOptions(
    stacks=bert.OPTIONS.stacks, norm=bert.OPTIONS.norm, ffns=bert.OPTIONS.ffns, relatives=(BucketsConfig(),)
)

LAYER, BLOCK = "mpnet.encoder.layer.{i}.", "encoder.blocks.{i}."
ATTENTION = ("attention.self", "attention.output")
ROWS = (
    *(row for row in encoders.bert_tables("mpnet.") if "token_type" not in row.published),
    TensorRow("mpnet.encoder.relative_attention_bias.weight", ("encoder.relative.0.weight",)),
    *(row for row in encoders.bert_layers("mpnet.") if not any(name in row.published for name in ATTENTION)),
    *(row for name in "qkvo" for row in pair(f"{LAYER}attention.attn.{name}", f"{BLOCK}mixer.{name}")),
    *pair(LAYER + "attention.LayerNorm", BLOCK + "mixer_residual.outside"),
)


def _config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    data = bert.config_data({**f, "type_vocab_size": 0})
    data["encoder"]["block"]["mixer"]["relative"] = {"kind": "buckets", "buckets": BUCKETS}
    return offset_positions(data, f["max_position_embeddings"], PADDING)


def _published_fields(config: TransformerConfig) -> dict[str, Any]:
    fields = without(bert.published_fields(config), "type_vocab_size")
    return {**fields, **position_fields(config), "relative_attention_num_buckets": BUCKETS}


ENCODER = Encoder(
    name="mpnet",
    classes="MPNet",
    prefix="mpnet.",
    layers="encoder.layer.{i}.",
    defaults=DEFAULTS,
    config_data=_config_data,
    published_fields=_published_fields,
    rows=ROWS,
    options=OPTIONS,
    fixed=FIXED,
    ids=ROBERTA_IDS,
    copies={
        "lm_head.decoder.weight": ("mpnet.embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    },
    instead={"lm_head.decoder.bias": "lm_head.bias"},
)
MPNETS = (
    ENCODER.family(
        "ForMaskedLM",
        lambda f: masked_head("gelu", f["layer_norm_eps"], f["tie_word_embeddings"]),
        encoders.ROBERTA_MASKED,
        encoders.USUAL_MASKED,
        unread=ENCODER.pooler(),
    ),
    ENCODER.family(
        "ForSequenceClassification",
        lambda f: classifier(f, f["hidden_dropout_prob"], pooling="first", dense=True),
        encoders.ROBERTA_CLASSES,
        encoders.USUAL_CLASSES,
        unread=ENCODER.pooler(),
    ),
    ENCODER.family(
        "ForTokenClassification",
        lambda f: classifier(f, f["hidden_dropout_prob"], pooling="none"),
        encoders.TAGS,
        encoders.USUAL_TAGS,
        unread=ENCODER.pooler(),
    ),
    ENCODER.family("Model", encoders.pooled_head, encoders.POOLER, encoders.USUAL_POOLED),
)
