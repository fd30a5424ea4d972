"""Gemma 2 and 3 (Gemma Team 2024, 2025), text only, in Hugging Face's format.

A Gemma 2 has sandwich norms stored minus 1, softcapping, and alternating local layers. A Gemma 3 also has norms on queries and
keys, and separate rotary positions in local and global layers.
"""

from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.fields import (
    Change,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    heddle_activation,
    one_block,
    published_activation,
)
from heddle.convert.mapping import TensorRow
from heddle.errors import HeddleError

ACTIVATION = "gelu_pytorch_tanh"


def _scale(scalar: Any, name: str) -> float:
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise HeddleError(f"{name} = {scalar!r} in config.json: must be a number above 0")
    scale: float = float(scalar) ** -0.5
    return scale


# Hugging Face transformers requires a whole number.
SCALE = Change(_scale, lambda scale: round(scale**-2) or 1)
CONSTANTS = {
    **llama.CONSTANTS, "decoder.block.placement": "sandwich", "decoder.final_norm": True, "decoder.entry.scale": True,
}  # fmt: skip
ROWS = (
    *derived(
        llama.ROWS,
        ("hidden_act", "mlp_bias"),
        vocab_size=256000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    FieldRow(
        "hidden_activation",
        ACTIVATION,
        "decoder.block.ffn.activation",
        Change(lambda value, name: heddle_activation(value or ACTIVATION, "hidden_act"), published_activation),
    ),
    FieldRow("query_pre_attn_scalar", 256, "decoder.block.mixer.scale", SCALE),
    FieldRow("final_logit_softcapping", 30.0, "head.cap"),
)
CAP = FieldRow("attn_logit_softcapping", 50.0, "decoder.block.mixer.cap")


WINDOWS = layers.alternating_windows(4096)
FIELDS = FieldTable(
    "Gemma 2's config.json",
    CONSTANTS,
    (
        *ROWS,
        CAP,
        WINDOWS,
        rotary.angles(),
    ),
    fixed={**rotary.FIXED, "use_bidirectional_attention": False},
    # An activation that transformers does not read, a setting for the KV cache in older files, and a second name for
    # sliding_window, which transformers does not read either.
    idle=("hidden_act", "cache_implementation", "sliding_window_size"),
)

LAYER, BLOCK = llama.LAYER, llama.BLOCK
GEMMA2 = replace(
    llama.LLAMA,
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    fields=FIELDS,
    table=(
        *(row for row in llama.TABLE if "norm" not in row.published and not row.published.endswith("_proj.bias")),
        *(row for row in llama.TABLE if ".self_attn." in row.published and row.published.endswith("_proj.bias")),
        TensorRow(LAYER + "input_layernorm.weight", (BLOCK + "mixer_residual.before.weight",), shift=1.0),
        TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "mixer_residual.after.weight",), shift=1.0),
        TensorRow(LAYER + "pre_feedforward_layernorm.weight", (BLOCK + "ffn_residual.before.weight",), shift=1.0),
        TensorRow(LAYER + "post_feedforward_layernorm.weight", (BLOCK + "ffn_residual.after.weight",), shift=1.0),
        TensorRow("model.norm.weight", ("decoder.final_norm.weight",), shift=1.0),
    ),
    names=llama.NAMES,
    ids={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
)

GLOBAL, LOCAL, PERIOD = 1_000_000.0, 10_000.0, 6


def _read_positions(f: Fields, data: Data) -> None:
    stack = data["decoder"]
    global_rotary, local_rotary = layers.read_rotaries(f, ("rope_theta", GLOBAL), ("rope_local_base_freq", LOCAL))
    period = layers.period(f["sliding_window_pattern"], "sliding_window_pattern")
    default_local = [number for number in layers.numbers(stack["depth"]) if (number + 1) % period]
    places = layers.local_layers(f["layer_types"], stack["depth"], default_local)
    layers.set_local_and_global(stack, places, f["sliding_window"], global_rotary, local_rotary)


def _write_positions(config: TransformerConfig) -> Data:
    width = one_block(config).mixer.width(config.dim)
    rotaries = layers.rotary_fields(config.stacks()["decoder"], width, GLOBAL, LOCAL)
    return {
        **WINDOWS.write(config),
        "rope_theta": rotaries[layers.FULL]["rope_theta"],
        "rope_local_base_freq": rotaries[layers.LOCAL]["rope_theta"],
        "rope_scaling": rotaries[layers.FULL]["rope_scaling"],
        "rope_parameters": {name: each["rope_parameters"] for name, each in rotaries.items()},
    }


GEMMA3_FIELDS = FieldTable(
    "Gemma 3's config.json",
    {**CONSTANTS, "decoder.block.mixer.qk_norm.kind": "rms"},
    (
        *derived(
            ROWS,
            vocab_size=262208,
            max_position_embeddings=131072,
            rms_norm_eps=llama.QK_EPS,
            final_logit_softcapping=None,
        ),
        Part(
            {
                **rotary.DEFAULTS, **WINDOWS.defaults, "rope_local_base_freq": None, "sliding_window_pattern": PERIOD,
            },
            _read_positions,
            _write_positions,
        ),
    ),
    # Hugging Face transformers has a field for softcapping attention, but does not read it.
    fixed={**FIELDS.fixed, CAP.published: None},
    idle=("cache_implementation", "sliding_window_size", "_sliding_window_pattern"),
)  # fmt: skip
GEMMA3 = replace(
    GEMMA2,
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    bare="Gemma3TextModel",
    fields=GEMMA3_FIELDS,
    table=(*GEMMA2.table, *(replace(row, shift=1.0) for row in llama.QK_NORMS)),
)
