"""Phi-3 (Abdin et al. 2024) in Hugging Face's format: a Llama with fused projections and optional partial rotary positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.config.positions import LongRopeScaling
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import one_block, own_code, read_fields, without
from heddle.convert.mapping import Consecutive, Fused, TensorRow
from heddle.errors import HeddleError

ARCHITECTURE = "Phi3ForCausalLM"
ABSENT = ("attention_bias", "mlp_bias", "head_dim")
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, *ABSENT),
    "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "resid_pdrop": 0.0, "sliding_window": None, "original_max_position_embeddings": 4096,
    "partial_rotary_factor": None,
}  # fmt: skip
IDLE = ("embd_pdrop",)  # Hugging Face transformers does not read it
# Published files also have fields of the code that they were first released with.
FIXED = {
    "rope_interleaved": False, "attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1,
    "interpolate_factor": 1,
}  # fmt: skip
SPELLINGS = {"su": "longrope", "yarn": "longrope"}  # in older files
KINDS = ("default", "longrope")

LAYER, BLOCK = llama.LAYER, llama.BLOCK
SPLIT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
TABLE = (
    *(
        row
        for row in llama.TABLE
        if not row.published.endswith(".bias") and not any(name in row.published for name in SPLIT)
    ),
    TensorRow(
        LAYER + "self_attn.qkv_proj.weight", tuple(f"{BLOCK}mixer.{name}.weight" for name in "qkv"), Consecutive()
    ),
    TensorRow(LAYER + "mlp.gate_up_proj.weight", (BLOCK + "ffn.gate.weight", BLOCK + "ffn.up.weight"), Fused(0, 2)),
)


def _tables(f: Mapping[str, Any]) -> dict[str, Any]:
    """The two tables of rotary positions in current spelling, with LongRoPE's original context from a separate field."""
    tables = {}
    for name in rotary.TABLES:
        table = f[name]
        if isinstance(table, Mapping):
            kinds = {key: table[key] for key in ("rope_type", "type") if table.get(key) is not None}
            kinds = {key: SPELLINGS.get(kind, kind) if isinstance(kind, str) else kind for key, kind in kinds.items()}
            for key, kind in kinds.items():
                if kind not in KINDS:
                    raise HeddleError(f"{name}.{key} = {kind!r} in config.json: {ARCHITECTURE} has {', '.join(KINDS)}")
            table = {**table, **kinds}
            if "longrope" in kinds.values():
                table["original_max_position_embeddings"] = f["original_max_position_embeddings"]
        tables[name] = table
    return tables


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A Phi-3 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED, idle=(*IDLE, *own_code(published, "Phi3")))
    f |= {**_tables(f), "attention_bias": False, "mlp_bias": False, "head_dim": None}
    data = llama.config_data(f, fraction=rotary.read_fraction(f, 1.0, "partial_rotary_factor"))
    data["decoder"]["block"]["mixer"]["window"] = f["sliding_window"]
    data["decoder"]["block"]["dropout"] = f["resid_pdrop"]
    return TransformerConfig.of(data, where="Phi-3's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest Phi-3 `config.json`."""
    block = one_block(config)
    relative, width = block.mixer.relative, block.mixer.width(config.dim)
    scaling = relative.scaling
    return {
        **without(llama.from_config(config), *ABSENT),
        **rotary.published_rotary(relative, width, partial=True),
        "original_max_position_embeddings": scaling.original
        if isinstance(scaling, LongRopeScaling)
        else config.context,
        "partial_rotary_factor": relative.fraction,
        "sliding_window": block.mixer.window,
        "resid_pdrop": block.dropout,
    }


PHI3 = replace(
    llama.LLAMA,
    name="phi3",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    ids={"bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000},
)
