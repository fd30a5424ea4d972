"""UMT5 (Chung et al. 2023) in Hugging Face's format: a T5 with separate relative positions in every layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import t5
from heddle.convert.families.family import read_fields, without

ARCHITECTURE = "UMT5ForConditionalGeneration"
DEFAULTS: dict[str, Any] = {
    **without(t5.DEFAULTS, "scale_decoder_outputs"),
    "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
IDLE = (*t5.IDLE, "scalable_attention")  # which no version of Hugging Face transformers reads


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A UMT5 `config.json` as a heddle config.

    Google's files have `tie_word_embeddings = false`: the weights were trained with an untied head without a scale, as in Hugging
    Face transformers 4. Version 5 always scales, and writes true.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, t5.FIXED, idle=IDLE)
    data = t5.config_data({**f, "scale_decoder_outputs": None}, shared=False)
    return TransformerConfig.of(data, where="UMT5's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest UMT5 `config.json`, for Hugging Face transformers 5, which always writes that the head is tied.

    Raises:
        HeddleError: UMT5 has no name for the activation.
    """
    return {**without(t5.from_config(config), "scale_decoder_outputs"), "tie_word_embeddings": True}


UMT5 = replace(
    t5.T5,
    name="umt5",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=t5.table("{i}"),
    ids={**t5.T5.ids, "decoder_start_token_id": 0},
)
