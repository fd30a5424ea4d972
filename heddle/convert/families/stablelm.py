"""StableLM (Bellagente et al. 2024) in Hugging Face's format: a Llama with LayerNorm and partial rotary positions, in some models
with parallel branches."""

from dataclasses import replace

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import FamilyOptions
from heddle.convert.fields import QKV, FieldRow, FieldTable, derived, switch
from heddle.convert.mapping import TensorRow

FIELDS = FieldTable(
    "StableLM's config.json",
    {**llama.CONSTANTS, "decoder.block.norm.kind": "layer"},
    (
        *derived(
            llama.ROWS,
            ("attention_bias", "mlp_bias", "head_dim", "rms_norm_eps"),
            vocab_size=50304,
            hidden_size=2560,
            intermediate_size=6912,
            num_key_value_heads=32,
            max_position_embeddings=4096,
        ),
        FieldRow("layer_norm_eps", 1e-5, "decoder.block.norm.eps"),
        FieldRow("use_qkv_bias", False, "decoder.block.mixer.bias", QKV),
        FieldRow("use_parallel_residual", False, "decoder.block.wiring", switch("parallel_one_norm", "serial")),
        FieldRow("hidden_dropout", 0.0, "decoder.block.dropout"),
        rotary.angles(share=0.25),
        llama.WHOLE_HEADS,
    ),
    # With qk_layernorm, queries and keys are normalised with separate gains for each head, which heddle does not support.
    fixed={"rope_interleaved": False, "qk_layernorm": False},
)

LAYER, BLOCK = llama.LAYER, llama.BLOCK
STABLELM = replace(
    llama.LLAMA,
    name="stablelm",
    architecture="StableLmForCausalLM",
    fields=FIELDS,
    table=(
        *(row for row in llama.TABLE if not row.published.endswith(("o_proj.bias", "mlp.gate_proj.bias"))),
        TensorRow(LAYER + "input_layernorm.bias", (BLOCK + "mixer_residual.before.bias",)),
        TensorRow(LAYER + "post_attention_layernorm.bias", (BLOCK + "ffn_residual.before.bias",)),
        TensorRow("model.norm.bias", ("decoder.final_norm.bias",)),
    ),
    names=replace(llama.NAMES, ignorable=(LAYER + "self_attn.rotary_emb.inv_freq",)),
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),)),
    ids={"bos_token_id": 0, "eos_token_id": 0},
)
