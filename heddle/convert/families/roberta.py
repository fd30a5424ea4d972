"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) in Hugging Face's format: BERT with positions that start after the
padding id."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import bert, encoders
from heddle.convert.families.encoders import Encoder, classifier, masked_head
from heddle.convert.families.family import Family
from heddle.errors import HeddleError

DEFAULTS: dict[str, Any] = {**bert.DEFAULTS, "vocab_size": 50265, "pad_token_id": 1}
XLM_R_DEFAULTS: dict[str, Any] = {**DEFAULTS, "vocab_size": 30522}
ROBERTA_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


def offset_positions(data: dict[str, Any], places: Any, padding: Any) -> dict[str, Any]:
    """The config data with positions that start after the padding id, in a table of `places` rows.

    Raises:
        HeddleError: the table has no row for a token.
    """
    if not isinstance(padding, int) or not isinstance(places, int) or not 0 <= padding < places - 1:
        raise HeddleError(
            f"max_position_embeddings = {places!r} in config.json: positions start after pad_token_id = {padding!r}, which "
            "leaves no position for a token"
        )
    data["context"] = places - padding - 1
    data["encoder"]["entry"]["offset"] = padding + 1
    return data


def position_fields(config: TransformerConfig) -> dict[str, Any]:
    """The fields that `offset_positions` reads.

    Raises:
        HeddleError: the positions do not start after the padding id.
    """
    offset = config.stacks()["encoder"].entry.offset or 2
    padding = None if config.ids is None else config.ids.padding
    if padding not in (None, offset - 1):
        raise HeddleError(
            f"encoder.entry.offset is {offset}, but the padding id is {padding}, and positions must start after it"
        )
    return {"max_position_embeddings": config.context + offset, "pad_token_id": offset - 1}


def _config_data(f: Mapping[str, Any]) -> dict[str, Any]:
    return offset_positions(bert.config_data(f), f["max_position_embeddings"], f["pad_token_id"])


def _published_fields(config: TransformerConfig) -> dict[str, Any]:
    return {**bert.published_fields(config), **position_fields(config)}


ENCODER = Encoder(
    name="roberta",
    classes="Roberta",
    prefix="roberta.",
    layers="encoder.layer.{i}.",
    defaults=DEFAULTS,
    config_data=_config_data,
    published_fields=_published_fields,
    rows=(*encoders.bert_tables("roberta."), *encoders.bert_layers("roberta.")),
    options=bert.OPTIONS,
    fixed=bert.FIXED,
    ids=ROBERTA_IDS,
    rate="classifier_dropout",
    copies={
        "lm_head.decoder.weight": ("roberta.embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    },
    instead={"lm_head.decoder.bias": "lm_head.bias"},
)


def classes_of(encoder: Encoder) -> tuple[Family, ...]:
    """The classes of a RoBERTa with each head."""
    return (
        encoder.family(
            "ForMaskedLM",
            lambda f: masked_head("gelu", f["layer_norm_eps"], f["tie_word_embeddings"]),
            encoders.ROBERTA_MASKED,
            encoders.USUAL_MASKED,
            unread=encoder.pooler(),
        ),
        encoder.family(
            "ForSequenceClassification",
            lambda f: classifier(f, bert.rate(f), pooling="first", dense=True),
            encoders.ROBERTA_CLASSES,
            encoders.USUAL_CLASSES,
            unread=encoder.pooler(),
        ),
        encoder.family(
            "ForTokenClassification",
            lambda f: classifier(f, bert.rate(f), pooling="none"),
            encoders.TAGS,
            encoders.USUAL_TAGS,
            unread=encoder.pooler(),
        ),
        encoder.family("Model", encoders.pooled_head, encoders.POOLER, encoders.USUAL_POOLED),
    )


ROBERTAS = classes_of(ENCODER)
XLM_ROBERTAS = classes_of(replace(ENCODER, name="xlm-roberta", classes="XLMRoberta", defaults=XLM_R_DEFAULTS))
