"""OLMo 2 (OLMo team 2025) in Hugging Face's format: norms after the branches, and over all queries and all keys of a token."""

from dataclasses import replace

from heddle.convert.families import llama, rotary
from heddle.convert.fields import FieldTable, derived
from heddle.convert.mapping import TensorRow

FIELDS = FieldTable(
    "OLMo 2's config.json",
    {
        **llama.CONSTANTS,
        "decoder.block.placement": "output",
        "decoder.block.mixer.qk_norm.kind": "rms",
        "decoder.block.mixer.qk_norm_over": "all",
        "decoder.final_norm": True,
    },
    (
        *derived(
            llama.ROWS,
            ("mlp_bias", "head_dim"),
            vocab_size=50304,
            rms_norm_eps=replace(llama.QK_EPS, default=1e-5),
        ),
        rotary.angles(),
        llama.WHOLE_HEADS,
    ),
    rotary.FIXED,
)

LAYER, BLOCK = llama.LAYER, llama.BLOCK
PLACED = ("input_layernorm", "post_attention_layernorm", "mlp.")
OLMO2 = replace(
    llama.LLAMA,
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    fields=FIELDS,
    table=(
        *(
            row
            for row in llama.TABLE
            if not any(name in row.published for name in PLACED) or row.published.endswith("proj.weight")
        ),
        *llama.QK_NORMS,
        TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "mixer_residual.after.weight",)),
        TensorRow(LAYER + "post_feedforward_layernorm.weight", (BLOCK + "ffn_residual.after.weight",)),
    ),
    names=llama.NAMES,
    ids={"pad_token_id": 1, "eos_token_id": 50279},
)
