"""EleutherAI's GPT-J (Wang and Komatsuzaki 2021) and GPT-NeoX (Black et al. 2022; Pythia) in Hugging Face's format.

GPT-J has one norm for both branches, and neighbouring channels rotate; GPT-NeoX has parallel branches, partial rotary positions,
and fused q, k and v.
"""

from math import inf, nextafter
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import rotary
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import (
    ACTIVATION,
    BIAS,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    one_block,
    switch,
)
from heddle.convert.mapping import Grouped, Names, TensorRow, Vocabulary, fused, pair
from heddle.errors import HeddleError


def _fraction(rotated: Any, dim: Any, heads: Any) -> float:
    """The fraction of a head's channels that rotates.

    Raises:
        HeddleError: a head has fewer channels.
    """
    valid = all(isinstance(each, int) and each > 0 for each in (rotated, dim, heads))
    if not valid or rotated > dim // heads:
        raise HeddleError(f"rotary_dim = {rotated!r} in config.json: must be a whole number up to a head's width")
    share: float = rotated / (dim // heads)
    return share if int(dim // heads * share) == rotated else nextafter(share, inf)


def _read_rotated(f: Fields, data: Data) -> None:
    fraction = _fraction(f["rotary_dim"], f["n_embd"], f["n_head"])
    data["decoder"]["block"]["mixer"]["relative"] = {"kind": "rotary", "pairing": "neighbours", "fraction": fraction}


def _write_rotated(config: TransformerConfig) -> Data:
    mixer = one_block(config).mixer
    return {"rotary_dim": mixer.relative.rotated_dim(mixer.width(config.dim))}


GPTJ_FIELDS = FieldTable(
    "GPT-J's config.json",
    {
        "decoder.block.mixer.bias": False,
        "decoder.block.ffn.kind": "mlp",
        "decoder.block.norm.kind": "layer",
        "decoder.block.wiring": "parallel_one_norm",
        "head.bias": True,
    },
    (
        FieldRow("vocab_size", 50400, "vocab_size"),
        FieldRow("n_positions", 2048, "context"),
        FieldRow("n_embd", 4096, "dim"),
        FieldRow("n_layer", 28, "decoder.depth"),
        FieldRow("n_head", 16, "decoder.block.mixer.heads"),
        Part({"rotary_dim": 64}, _read_rotated, _write_rotated),
        FieldRow("n_inner", None, "decoder.block.ffn.hidden"),
        FieldRow("activation_function", "gelu_new", "decoder.block.ffn.activation", ACTIVATION),
        FieldRow("resid_pdrop", 0.0, "decoder.block.dropout"),
        FieldRow("embd_pdrop", 0.0, "decoder.entry.dropout"),
        FieldRow("attn_pdrop", 0.0, "decoder.block.mixer.dropout"),
        FieldRow("layer_norm_epsilon", 1e-5, "decoder.block.norm.eps"),
        FieldRow("initializer_range", 0.02, "initial.std"),
        FieldRow("tie_word_embeddings", False, "head.tied"),
    ),
    fixed={"rotary": True, "scale_attn_weights": True},
)

BLOCK = "decoder.blocks.{i}."
GPTJ_LAYER = "transformer.h.{i}."
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
GPTJ = Family(
    name="gptj",
    architecture="GPTJForCausalLM",
    fields=GPTJ_FIELDS,
    table=(
        TensorRow("transformer.wte.weight", ("embedding.weight",), Vocabulary()),
        *pair(GPTJ_LAYER + "ln_1", BLOCK + "mixer_residual.before"),
        *(
            TensorRow(f"{GPTJ_LAYER}attn.{published}.weight", (f"{BLOCK}mixer.{heddle}.weight",))
            for published, heddle in PROJECTIONS.items()
        ),
        *pair(GPTJ_LAYER + "mlp.fc_in", BLOCK + "ffn.up"),
        *pair(GPTJ_LAYER + "mlp.fc_out", BLOCK + "ffn.down"),
        *pair("transformer.ln_f", "decoder.final_norm"),
        TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
        TensorRow("lm_head.bias", ("head.bias",), Vocabulary()),
    ),
    names=Names(
        prefix="transformer.",
        ignorable=tuple(GPTJ_LAYER + f"attn.{name}" for name in ("bias", "masked_bias", "embed_positions")),
        copies={"lm_head.weight": ("transformer.wte.weight",)},
    ),
    layers={"decoder": GPTJ_LAYER},
    options=FamilyOptions(
        norm=LayerNormConfig(),
        ffns=(MLPConfig(),),
        relatives=(RotaryConfig(pairing="neighbours"),),
        head=LanguageHeadConfig(tied=False, bias=True),
    ),
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)

ANGLES = rotary.angles(share=0.25, names=("rotary_pct", "partial_rotary_factor"))


def _read_angles(f: Fields, data: Data) -> None:
    base = f["rope_theta"] if f["rotary_emb_base"] is None else f["rotary_emb_base"]
    ANGLES.read({**f, "rope_theta": base}, data)


def _write_angles(config: TransformerConfig) -> Data:
    fields = ANGLES.write(config)
    return {**fields, "rotary_emb_base": fields["rope_theta"]}


NEOX_FIELDS = FieldTable(
    "GPT-NeoX's config.json",
    {"decoder.block.ffn.kind": "mlp", "decoder.block.norm.kind": "layer"},
    (
        FieldRow("vocab_size", 50432, "vocab_size"),
        FieldRow("hidden_size", 6144, "dim"),
        FieldRow("num_hidden_layers", 44, "decoder.depth"),
        FieldRow("num_attention_heads", 64, "decoder.block.mixer.heads"),
        FieldRow("intermediate_size", 24576, "decoder.block.ffn.hidden"),
        FieldRow("hidden_act", "gelu", "decoder.block.ffn.activation", ACTIVATION),
        FieldRow("attention_dropout", 0.0, "decoder.block.mixer.dropout"),
        FieldRow("hidden_dropout", 0.0, ("decoder.block.dropout", "decoder.entry.dropout")),
        FieldRow("max_position_embeddings", 2048, "context"),
        FieldRow("initializer_range", 0.02, "initial.std"),
        FieldRow("layer_norm_eps", 1e-5, "decoder.block.norm.eps"),
        FieldRow("tie_word_embeddings", False, "head.tied"),
        FieldRow("use_parallel_residual", True, "decoder.block.wiring", switch("parallel", "serial")),
        FieldRow("attention_bias", True, "decoder.block.mixer.bias", BIAS),
        Part({**ANGLES.defaults, "rotary_emb_base": None}, _read_angles, _write_angles),
    ),
    fixed={"rope_interleaved": False},
)

NEOX_LAYER = "gpt_neox.layers.{i}."
GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    fields=NEOX_FIELDS,
    table=(
        TensorRow("gpt_neox.embed_in.weight", ("embedding.weight",), Vocabulary()),
        *pair(NEOX_LAYER + "input_layernorm", BLOCK + "mixer_residual.before"),
        *pair(NEOX_LAYER + "post_attention_layernorm", BLOCK + "ffn_residual.before"),
        *fused(NEOX_LAYER + "attention.query_key_value", BLOCK + "mixer", Grouped(), Grouped()),
        *pair(NEOX_LAYER + "attention.dense", BLOCK + "mixer.o"),
        *pair(NEOX_LAYER + "mlp.dense_h_to_4h", BLOCK + "ffn.up"),
        *pair(NEOX_LAYER + "mlp.dense_4h_to_h", BLOCK + "ffn.down"),
        *pair("gpt_neox.final_layer_norm", "decoder.final_norm"),
        TensorRow("embed_out.weight", ("head.weight",), Vocabulary()),
    ),
    names=Names(
        prefix="gpt_neox.",
        ignorable=tuple(NEOX_LAYER + f"attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
        copies={"embed_out.weight": ("gpt_neox.embed_in.weight",)},
    ),
    layers={"decoder": NEOX_LAYER},
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),), relatives=(RotaryConfig(),)),
    ids={"bos_token_id": 0, "eos_token_id": 2},
)
