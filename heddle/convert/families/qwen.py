"""Qwen2 and Qwen3 (Yang et al. 2024, 2025) in Hugging Face's format.

A Qwen2 is a Llama whose queries, keys and values have biases, a Qwen3 one with norms on the queries and keys of each head.
"""

from dataclasses import replace

from heddle.convert.families import layers, llama, rotary
from heddle.convert.fields import FieldTable, derived

ROWS = derived(
    llama.ROWS,
    ("mlp_bias",),
    vocab_size=151936,
    intermediate_size=22016,
    num_key_value_heads=32,
    max_position_embeddings=32768,
)
# With `use_sliding_window`, `layer_types` lists the layers with a window; without it, those from `max_window_layers` on have one.
WINDOWS = layers.qwen_windows(lambda number, count: number >= count)
QK_NORM = {"decoder.block.mixer.qk_norm.kind": "rms"}

QWEN2 = replace(
    llama.LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=FieldTable(
        "Qwen2's config.json",
        {**llama.CONSTANTS, "decoder.block.mixer.bias": ["q", "k", "v"]},
        (*derived(ROWS, ("attention_bias",)), rotary.angles(), WINDOWS, llama.WHOLE_HEADS),
        rotary.FIXED,
    ),
    ids={},
)
QWEN3 = replace(
    llama.LLAMA,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=FieldTable(
        "Qwen3's config.json",
        {**llama.CONSTANTS, **QK_NORM},
        (*derived(ROWS, head_dim=128, rms_norm_eps=llama.QK_EPS), rotary.angles(), WINDOWS, llama.WHOLE_HEADS),
        rotary.FIXED,
    ),
    table=(*llama.TABLE, *llama.QK_NORMS),
    ids={},
)
