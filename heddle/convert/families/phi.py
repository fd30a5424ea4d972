"""Microsoft's Phi in Hugging Face's format: Phi-1 to Phi-2 (Gunasekar et al. 2023), and Phi-3 (Abdin et al. 2024).

Phi has parallel branches with one norm, and partial rotary positions. Phi-3 is a Llama with fused projections that may
rotate in part.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.positions import LongRopeScaling, RotaryConfig
from heddle.convert.families import llama, rotary
from heddle.convert.families.family import FamilyOptions
from heddle.convert.fields import (
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    one_block,
    own_code,
)
from heddle.convert.mapping import Consecutive, Fused, TensorRow, Vocabulary, pair, pairs
from heddle.errors import HeddleError

LAYER, BLOCK = llama.LAYER, llama.BLOCK


def _read_qk_norm(f: Fields, data: Data) -> None:
    block = data["decoder"]["block"]
    block["mixer"]["qk_norm"] = block["norm"] if f["qk_layernorm"] else None


def _write_qk_norm(config: TransformerConfig) -> Data:
    return {"qk_layernorm": one_block(config).mixer.qk_norm is not None}


FIELDS = FieldTable(
    "Phi's config.json",
    {
        "decoder.block.ffn.kind": "mlp",
        "decoder.block.norm.kind": "layer",
        "decoder.block.wiring": "parallel_one_norm",
        "head.bias": True,
    },
    (
        *derived(
            llama.ROWS,
            ("head_dim", "rms_norm_eps", *llama.BIASES),
            vocab_size=51200,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=24,
            hidden_act="gelu_new",
        ),
        FieldRow("resid_pdrop", 0.0, "decoder.block.dropout"),
        FieldRow("embd_pdrop", 0.0, "decoder.entry.dropout"),
        FieldRow("layer_norm_eps", 1e-5, "decoder.block.norm.eps"),
        Part({"qk_layernorm": False}, _read_qk_norm, _write_qk_norm),
        rotary.angles(share=0.5),
    ),
    fixed={"rope_interleaved": False},
)
PROJECTIONS = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "dense": "o", "q_layernorm": "q_norm", "k_layernorm": "k_norm",
}  # fmt: skip
PHI = replace(
    llama.LLAMA,
    name="phi",
    architecture="PhiForCausalLM",
    fields=FIELDS,
    table=(
        TensorRow("model.embed_tokens.weight", ("embedding.weight",), Vocabulary()),
        *pair(LAYER + "input_layernorm", BLOCK + "mixer_residual.before"),
        *pairs(LAYER + "self_attn.", BLOCK + "mixer.", PROJECTIONS),
        *pair(LAYER + "mlp.fc1", BLOCK + "ffn.up"),
        *pair(LAYER + "mlp.fc2", BLOCK + "ffn.down"),
        *pair("model.final_layernorm", "decoder.final_norm"),
        TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
        TensorRow("lm_head.bias", ("head.bias",), Vocabulary()),
    ),
    names=replace(llama.NAMES, ignorable=(LAYER + "self_attn.rotary_emb.inv_freq",)),
    options=FamilyOptions(
        norm=LayerNormConfig(),
        ffns=(MLPConfig(),),
        relatives=(RotaryConfig(),),
        head=LanguageHeadConfig(tied=False, bias=True),
    ),
    ids={"bos_token_id": 1, "eos_token_id": 2},
)

SPELLINGS = {"su": "longrope", "yarn": "longrope"}  # in older files
KINDS = ("default", "longrope")
ANGLES = rotary.angles(share=1.0)


def _tables(f: Fields) -> dict[str, Any]:
    """The two tables of rotary positions in current spelling, with LongRoPE's original context from a separate field."""
    tables = {}
    for name in rotary.TABLES:
        table = f[name]
        if isinstance(table, Mapping):
            kinds = {key: table[key] for key in ("rope_type", "type") if table.get(key) is not None}
            kinds = {key: SPELLINGS.get(kind, kind) if isinstance(kind, str) else kind for key, kind in kinds.items()}
            for key, kind in kinds.items():
                if kind not in KINDS:
                    raise HeddleError(
                        f"{name}.{key} = {kind!r} in config.json: {PHI3.architecture} has {', '.join(KINDS)}"
                    )
            table = {**table, **kinds}
            if "longrope" in kinds.values():
                table["original_max_position_embeddings"] = f["original_max_position_embeddings"]
        tables[name] = table
    return tables


def _write_angles(config: TransformerConfig) -> Data:
    scaling = one_block(config).mixer.relative.scaling
    original = scaling.original if isinstance(scaling, LongRopeScaling) else config.context
    return {**ANGLES.write(config), "original_max_position_embeddings": original}


PHI3_FIELDS = FieldTable(
    "Phi-3's config.json",
    llama.CONSTANTS,
    (
        *derived(
            llama.ROWS,
            ("head_dim", *llama.BIASES),
            vocab_size=32064,
            hidden_size=3072,
            intermediate_size=8192,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
        ),
        FieldRow("resid_pdrop", 0.0, "decoder.block.dropout"),
        FieldRow("sliding_window", None, "decoder.block.mixer.window"),
        Part(
            {**ANGLES.defaults, "original_max_position_embeddings": 4096},
            lambda f, data: ANGLES.read({**f, **_tables(f)}, data),
            _write_angles,
        ),
        llama.WHOLE_HEADS,
    ),
    # Published files also have fields of the code that they were first released with.
    fixed={
        "rope_interleaved": False, "attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1,
        "interpolate_factor": 1,
    },
    idle=("embd_pdrop",),  # Hugging Face transformers does not read it
    more_idle=own_code("Phi3"),
)  # fmt: skip
SPLIT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
PHI3 = replace(
    llama.LLAMA,
    name="phi3",
    architecture="Phi3ForCausalLM",
    fields=PHI3_FIELDS,
    table=(
        *(
            row
            for row in llama.TABLE
            if not row.published.endswith(".bias") and not any(name in row.published for name in SPLIT)
        ),
        TensorRow(
            LAYER + "self_attn.qkv_proj.weight", tuple(f"{BLOCK}mixer.{name}.weight" for name in "qkv"), Consecutive()
        ),
        TensorRow(LAYER + "mlp.gate_up_proj.weight", (BLOCK + "ffn.gate.weight", BLOCK + "ffn.up.weight"), Fused(0, 2)),
    ),
    ids={"bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000},
)
