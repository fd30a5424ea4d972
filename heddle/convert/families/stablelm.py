"""StableLM (Bellagente et al. 2024) in Hugging Face's format: a Llama with LayerNorm and partial rotary positions, in some models
with parallel branches."""

from collections.abc import Mapping
from typing import Any

from heddle.config.layers import GatedConfig, LayerNormConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import Family, FamilyOptions, one_block, read_fields, without
from heddle.convert.mapping import Names, TensorRow

ARCHITECTURE = "StableLmForCausalLM"
FRACTION = 0.25
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "attention_bias", "mlp_bias", "head_dim", "rms_norm_eps"),
    "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_key_value_heads": 32,
    "max_position_embeddings": 4096, "layer_norm_eps": 1e-5, "use_qkv_bias": False, "use_parallel_residual": False,
    "partial_rotary_factor": None, "hidden_dropout": 0.0,
}  # fmt: skip
# With qk_layernorm, queries and keys are normalised with separate gains for each head, which heddle does not support.
FIXED = {"rope_interleaved": False, "qk_layernorm": False}

LAYER, BLOCK = llama.LAYER, llama.BLOCK
TABLE = (
    *(row for row in llama.TABLE if not row.published.endswith(("o_proj.bias", "mlp.gate_proj.bias"))),
    TensorRow(LAYER + "input_layernorm.bias", (BLOCK + "mixer_residual.before.bias",)),
    TensorRow(LAYER + "post_attention_layernorm.bias", (BLOCK + "ffn_residual.before.bias",)),
    TensorRow("model.norm.bias", ("decoder.final_norm.bias",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A StableLM `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED)
    fraction = rotary.read_fraction(f, FRACTION, "partial_rotary_factor")
    absent = {"attention_bias": False, "mlp_bias": False, "head_dim": None, "rms_norm_eps": 1e-6}
    data = llama.config_data({**f, **absent}, fraction=fraction)
    block = data["decoder"]["block"]
    block["mixer"]["bias"] = ["q", "k", "v"] if f["use_qkv_bias"] else False
    block |= {
        "norm": {"kind": "layer", "eps": f["layer_norm_eps"]},
        "wiring": "parallel_one_norm" if f["use_parallel_residual"] else "serial",
        "dropout": f["hidden_dropout"],
    }
    return TransformerConfig.of(data, where="StableLM's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest StableLM `config.json`."""
    block = one_block(config)
    mixer = block.mixer
    return {
        **without(llama.from_config(config), "attention_bias", "mlp_bias", "head_dim", "rms_norm_eps"),
        "layer_norm_eps": block.norm.eps,
        "use_qkv_bias": bool(mixer.biased()),
        "use_parallel_residual": block.wiring != "serial",
        "hidden_dropout": block.dropout,
        "partial_rotary_factor": mixer.relative.fraction,
        **rotary.published_rotary(mixer.relative, mixer.width(config.dim), partial=True),
    }


STABLELM = Family(
    name="stablelm",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="model.",
        ignorable=(LAYER + "self_attn.rotary_emb.inv_freq",),
        copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(GatedConfig(),), relatives=(RotaryConfig(),)),
    ids={"bos_token_id": 0, "eos_token_id": 0},
)
