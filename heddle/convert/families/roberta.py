"""RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020) and MPNet (Song et al. 2020) in Hugging Face's format.

A RoBERTa is a BERT with positions that start after the padding id. An MPNet is a RoBERTa without token types, with T5's relative
positions in addition to its learned positions.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.config.positions import BucketsConfig
from heddle.convert.families import bert, encoders
from heddle.convert.families.encoders import Encoder, classifier, masked_head
from heddle.convert.families.family import Family
from heddle.convert.fields import Data, Fields, FieldTable, Part, derived
from heddle.convert.mapping import TensorRow, pair
from heddle.errors import HeddleError

IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


def _offset_positions(data: Data, places: Any, padding: Any) -> None:
    """Let positions start after the padding id, in a table of `places` rows.

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


def _write_positions(config: TransformerConfig) -> Data:
    """The fields of the positions.

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


POSITIONS = Part(
    {"max_position_embeddings": 512, "pad_token_id": 1},
    lambda f, data: _offset_positions(data, f["max_position_embeddings"], f["pad_token_id"]),
    _write_positions,
)
ROWS = derived(bert.ROWS, ("max_position_embeddings",))
COPIES = {
    "lm_head.decoder.weight": ("roberta.embeddings.word_embeddings.weight",),
    "lm_head.decoder.bias": ("lm_head.bias",),
}
ENCODER = replace(
    bert.ENCODER,
    name="roberta",
    classes="Roberta",
    prefix="roberta.",
    fields=replace(bert.FIELDS, rows=(*derived(ROWS, vocab_size=50265), POSITIONS)),
    rows=(*encoders.bert_tables("roberta."), *encoders.bert_layers("roberta.")),
    ids=IDS,
    copies=COPIES,
    instead={"lm_head.decoder.bias": "lm_head.bias"},
)


def classes_of(encoder: Encoder, rate: Callable[[Fields], Any]) -> tuple[Family, ...]:
    """The classes of a RoBERTa with each head.

    Args:
        encoder: the RoBERTa.
        rate: the dropout of its classifiers.
    """
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
            lambda f: classifier(f, rate(f), pooling="first", dense=True),
            encoders.ROBERTA_CLASSES,
            encoders.USUAL_CLASSES,
            unread=encoder.pooler(),
        ),
        encoder.family(
            "ForTokenClassification",
            lambda f: classifier(f, rate(f), pooling="none"),
            encoders.TAGS,
            encoders.USUAL_TAGS,
            unread=encoder.pooler(),
        ),
        encoder.family("Model", encoders.pooled_head, encoders.POOLER, encoders.USUAL_POOLED),
    )


ROBERTAS = classes_of(ENCODER, bert.rate)
XLM = replace(ENCODER, name="xlm-roberta", classes="XLMRoberta", fields=replace(bert.FIELDS, rows=(*ROWS, POSITIONS)))
XLM_ROBERTAS = classes_of(XLM, bert.rate)

PADDING = 1  # Hugging Face transformers counts positions from it, regardless of config.json
BUCKETS = 32  # likewise fixed: the table may have more rows, which are not read
MPNET_FIELDS = FieldTable(
    "",
    {
        **bert.CONSTANTS,
        "encoder.block.mixer.relative.kind": "buckets",
        "encoder.block.mixer.relative.buckets": BUCKETS,
    },
    (
        *derived(ROWS, ("type_vocab_size",), vocab_size=30527),
        Part(
            {"max_position_embeddings": 512},
            lambda f, data: _offset_positions(data, f["max_position_embeddings"], PADDING),
            _write_positions,
        ),
    ),
    fixed={**bert.FIELDS.fixed, "pad_token_id": PADDING, "relative_attention_num_buckets": BUCKETS},
)
LAYER, BLOCK = "mpnet.encoder.layer.{i}.", "encoder.blocks.{i}."
ATTENTION = ("attention.self", "attention.output")
MPNET = replace(
    ENCODER,
    name="mpnet",
    classes="MPNet",
    prefix="mpnet.",
    fields=MPNET_FIELDS,
    rows=(
        *(row for row in encoders.bert_tables("mpnet.") if "token_type" not in row.published),
        TensorRow("mpnet.encoder.relative_attention_bias.weight", ("encoder.relative.0.weight",)),
        *(row for row in encoders.bert_layers("mpnet.") if not any(name in row.published for name in ATTENTION)),
        *(row for name in "qkvo" for row in pair(f"{LAYER}attention.attn.{name}", f"{BLOCK}mixer.{name}")),
        *pair(LAYER + "attention.LayerNorm", BLOCK + "mixer_residual.outside"),
    ),
    options=replace(bert.OPTIONS, relatives=(BucketsConfig(),)),
    of_heads={"tie_word_embeddings": True},
    rate=None,
    copies={**COPIES, "lm_head.decoder.weight": ("mpnet.embeddings.word_embeddings.weight",)},
)
MPNETS = classes_of(MPNET, lambda f: f["hidden_dropout_prob"])
