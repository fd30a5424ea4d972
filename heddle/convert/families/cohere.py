"""Cohere's Command R (2024) in Hugging Face's format: one norm for both branches, neighbouring channels rotate, scaled logits."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import Family, FamilyOptions, one_block, read_fields, without
from heddle.convert.mapping import Names

ARCHITECTURE = "CohereForCausalLM"
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "mlp_bias", "head_dim", "rms_norm_eps"), "vocab_size": 256000, "hidden_size": 8192,
    "intermediate_size": 22528, "logit_scale": 0.0625, "num_hidden_layers": 40, "num_attention_heads": 64,
    "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
# With use_qk_norm, queries and keys are normalised with separate gains for each head, which heddle does not support.
FIXED = {**rotary.FIXED, "use_qk_norm": False}
BASE = 500_000.0
TABLE = tuple(
    row
    for row in llama.TABLE
    if "post_attention_layernorm" not in row.published and "mlp.gate_proj.bias" not in row.published
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Cohere `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED)
    data = llama.config_data({**f, "mlp_bias": False, "head_dim": None, "rms_norm_eps": 1e-6}, default_base=BASE)
    block = data["decoder"]["block"]
    block["mixer"]["relative"]["pairing"] = "neighbours"
    block |= {"norm": {"kind": "layer", "eps": f["layer_norm_eps"], "bias": False}, "wiring": "parallel_one_norm"}
    data["head"]["scale"] = f["logit_scale"]
    return TransformerConfig.of(data, where="Cohere's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Cohere `config.json`."""
    return {
        **without(llama.from_config(config), "mlp_bias", "head_dim", "rms_norm_eps"),
        "layer_norm_eps": one_block(config).norm.eps,
        "logit_scale": getattr(config.head, "scale", 1.0),
    }


COHERE = Family(
    name="cohere",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(prefix="model.", copies={"lm_head.weight": ("model.embed_tokens.weight",)}),
    layers={"decoder": llama.LAYER},
    options=FamilyOptions(
        norm=LayerNormConfig(bias=False), ffns=(GatedConfig(),), relatives=(RotaryConfig(pairing="neighbours"),)
    ),
    ids={"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 255001},
)
