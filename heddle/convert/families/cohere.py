"""Cohere's Command R (2024) in Hugging Face's format: one norm for both branches, neighbouring channels rotate, scaled logits."""

from dataclasses import replace

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import FamilyOptions
from heddle.convert.fields import FieldRow, FieldTable, derived

FIELDS = FieldTable(
    "Cohere's config.json",
    {
        **llama.CONSTANTS,
        "decoder.block.mixer.relative.pairing": "neighbours",
        "decoder.block.norm.kind": "layer",
        "decoder.block.norm.bias": False,
        "decoder.block.wiring": "parallel_one_norm",
    },
    (
        *derived(
            llama.ROWS,
            ("mlp_bias", "head_dim", "rms_norm_eps"),
            vocab_size=256000,
            hidden_size=8192,
            intermediate_size=22528,
            num_hidden_layers=40,
            num_attention_heads=64,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        ),
        rotary.angles(500_000.0),
        FieldRow("layer_norm_eps", 1e-5, "decoder.block.norm.eps"),
        FieldRow("logit_scale", 0.0625, "head.scale"),
        llama.WHOLE_HEADS,
    ),
    # With use_qk_norm, queries and keys are normalised with separate gains for each head, which heddle does not support.
    fixed={**rotary.FIXED, "use_qk_norm": False},
)
COHERE = replace(
    llama.LLAMA,
    name="cohere",
    architecture="CohereForCausalLM",
    fields=FIELDS,
    table=tuple(
        row
        for row in llama.TABLE
        if "post_attention_layernorm" not in row.published and "mlp.gate_proj.bias" not in row.published
    ),
    names=llama.NAMES,
    options=FamilyOptions(
        norm=LayerNormConfig(bias=False), ffns=(GatedConfig(),), relatives=(RotaryConfig(pairing="neighbours"),)
    ),
    ids={"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 255001},
)
