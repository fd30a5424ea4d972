"""OLMo 2 (OLMo team 2025) in Hugging Face's format: norms after the branches, and over all queries and all keys of a token."""

from collections.abc import Mapping
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.convert.families import llama
from heddle.convert.families.family import Family, read_fields, without
from heddle.convert.mapping import Names, TensorRow

ARCHITECTURE = "Olmo2ForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "mlp_bias", "head_dim"), "vocab_size": 50304, "rms_norm_eps": 1e-5,
}  # fmt: skip
FIXED = {"rope_interleaved": False, "partial_rotary_factor": 1.0}

LAYER, BLOCK = llama.LAYER, llama.BLOCK
PLACED = ("input_layernorm", "post_attention_layernorm", "mlp.")
TABLE = (
    *(
        row
        for row in llama.TABLE
        if not any(name in row.published for name in PLACED) or row.published.endswith("proj.weight")
    ),
    TensorRow(LAYER + "self_attn.q_norm.weight", (BLOCK + "mixer.q_norm.weight",)),
    TensorRow(LAYER + "self_attn.k_norm.weight", (BLOCK + "mixer.k_norm.weight",)),
    TensorRow(LAYER + "post_attention_layernorm.weight", (BLOCK + "mixer_residual.after.weight",)),
    TensorRow(LAYER + "post_feedforward_layernorm.weight", (BLOCK + "ffn_residual.after.weight",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """An OLMo 2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED)
    data = llama.config_data({**f, "mlp_bias": False, "head_dim": None})
    block = data["decoder"]["block"]
    block["placement"] = "output"
    block["mixer"] |= {"qk_norm": block["norm"], "qk_norm_over": "all"}
    data["decoder"]["final_norm"] = True
    return TransformerConfig.of(data, where="OLMo 2's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest OLMo 2 `config.json`."""
    return without(llama.from_config(config), "mlp_bias", "head_dim")


OLMO2 = Family(
    name="olmo2",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.embed_tokens.weight",)}),
    layers={"decoder": LAYER},
    options=llama.OPTIONS,
    ids={"pad_token_id": 1, "eos_token_id": 50279},
)
