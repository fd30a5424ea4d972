"""Granite (IBM 2024) in Hugging Face's format: a Llama with factors on embeddings, scores, branches and logits."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nextafter
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import one_block, read_fields, without
from heddle.errors import HeddleError

ARCHITECTURE = "GraniteForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "head_dim"), "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}  # fmt: skip


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Granite `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, rotary.FIXED)
    for name in ("embedding_multiplier", "logits_scaling"):
        if isinstance(f[name], bool) or not isinstance(f[name], int | float) or not f[name] > 0:
            raise HeddleError(f"{name} = {f[name]!r} in config.json: must be a number above 0")
    data = llama.config_data({**f, "head_dim": None})
    data["decoder"]["entry"] = {"scale": f["embedding_multiplier"]}
    data["decoder"]["block"]["branch_scale"] = f["residual_multiplier"]
    data["decoder"]["block"]["mixer"]["scale"] = f["attention_multiplier"]
    data["head"]["scale"] = 1 / f["logits_scaling"]
    return TransformerConfig.of(data, where="Granite's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Granite `config.json`."""
    block, mixer = one_block(config), one_block(config).mixer
    entry, scale = config.stacks()["decoder"].entry, getattr(config.head, "scale", 1.0)
    near = (1 / scale, nextafter(1 / scale, inf), nextafter(1 / scale, 0))
    named_scales = {"head_dim": mixer.width(config.dim) ** -0.5, "dim": config.dim**-0.5}
    return {
        **without(llama.from_config(config), "head_dim"),
        "embedding_multiplier": entry.factor(config.dim),
        "residual_multiplier": block.branch_scale,
        "attention_multiplier": named_scales.get(mixer.scale, mixer.scale),
        "logits_scaling": next((each for each in near if 1 / each == scale), near[0]),
    }


GRANITE = replace(llama.LLAMA, name="granite", architecture=ARCHITECTURE, to_config=to_config, from_config=from_config)
