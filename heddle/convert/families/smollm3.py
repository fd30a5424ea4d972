"""SmolLM 3 (Bakouch et al. 2025) in Hugging Face's format: a Llama without positions in every fourth layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.base import to_data
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import Family, read_fields, without
from heddle.convert.mapping import Names
from heddle.errors import HeddleError

ARCHITECTURE = "SmolLM3ForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "head_dim"), "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
    "use_sliding_window": False, "sliding_window": None, "layer_types": None, "no_rope_layers": None,
    "no_rope_layer_interval": 4,
}  # fmt: skip
IDLE = ("max_window_layers",)  # no version of Hugging Face transformers reads it here
BASE = 2_000_000.0


def _rotated(f: Mapping[str, Any]) -> list[int]:
    """The layers with rotary positions. `no_rope_layers` has a 1 for each of them, despite its name.

    Raises:
        HeddleError: a field about these layers is invalid.
    """
    every, flags = layers.numbers(f["num_hidden_layers"]), f["no_rope_layers"]
    if flags is None:
        step = layers.period(f["no_rope_layer_interval"], "no_rope_layer_interval")
        return [number for number in every if (number + 1) % step]
    if not isinstance(flags, list) or len(flags) != len(every) or any(each not in (0, 1) for each in flags):
        raise HeddleError(f"no_rope_layers = {flags!r} in config.json: must have 0 or 1 for each layer")
    return [number for number in every if flags[number]]


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A SmolLM 3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(
        published, ARCHITECTURE, DEFAULTS, {"rope_interleaved": False, "partial_rotary_factor": 1.0}, idle=IDLE
    )
    rotated, depth = _rotated(f), f["num_hidden_layers"]
    data = llama.config_data({**f, "head_dim": None}, default_base=BASE)
    stack = data["decoder"]
    relative = {name: value for name, value in stack["block"]["mixer"].pop("relative").items() if value is not None}
    layers.changed(stack, rotated, {"mixer": {"relative": relative}})
    unrotated = [number for number in layers.numbers(depth) if number not in rotated] if f["use_sliding_window"] else []
    local = layers.local_layers(f["layer_types"], depth, unrotated)
    if local and f["sliding_window"] is None and f["layer_types"] is not None:
        raise HeddleError(f"layer_types in config.json has {layers.LOCAL}, but there is no window")
    layers.set_window(stack, local, f["sliding_window"])
    return TransformerConfig.of(data, where="SmolLM 3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest SmolLM 3 `config.json`."""
    stack = config.stacks()["decoder"]
    relatives = [getattr(block.mixer, "relative", None) for block in stack.blocks]
    rotating = next((each for each in relatives if isinstance(each, RotaryConfig)), RotaryConfig(base=BASE))
    width: int = stack.blocks[0].mixer.width(config.dim)  # type: ignore[union-attr]
    window, kinds = layers.windows_and_types(stack)
    alike = config.override({"decoder.block.mixer.relative": to_data(rotating), "decoder.overrides": []})
    return {
        **without(llama.from_config(alike), "head_dim"),
        **rotary.published_rotary(rotating, width),
        "no_rope_layers": [int(each is not None) for each in relatives],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": kinds,
    }


SMOLLM3 = Family(
    name="smollm3",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=llama.TABLE,
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.embed_tokens.weight",)}),
    layers={"decoder": llama.LAYER},
    options=replace(llama.OPTIONS, relatives=(None, RotaryConfig())),
    ids={"bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004},
)
