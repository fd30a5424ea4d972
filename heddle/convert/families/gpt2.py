"""GPT-2 (Radford et al. 2019) in Hugging Face's format: matrices are stored input first, q, k and v as one."""

from math import isclose

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import (
    ACTIVATION,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    one_block,
    scale_of,
)
from heddle.convert.mapping import Fused, Names, TensorRow, Transposed, Vocabulary, fused, pair


def _read_scales(f: Fields, data: Data) -> None:
    """The factor on the scores of each layer, if it is not the default 1/√d in all layers."""
    scaled, by_layer, dim, heads = (
        f[name] for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "n_embd", "n_head")
    )
    possible = all(
        isinstance(size, int) and size > 0 for size in (dim, heads)
    )  # other values raise an error where they are read
    if (scaled and not by_layer) or not possible:
        return
    first = (dim // heads or 1) ** -0.5 if scaled else 1.0
    stack = data["decoder"]
    factors = [first / (i + 1 if by_layer else 1) for i in layers.numbers(f["n_layer"])]
    stack["block"]["mixer"] |= {"scale": first} if factors else {}
    stack["overrides"] = [
        {"layers": str(i), "block": {"mixer": {"scale": factor}}} for i, factor in enumerate(factors) if factor != first
    ]


def _write_scales(config: TransformerConfig) -> Data:
    """The comparison of the round trip reports any other scale."""
    mixer = one_block(config).mixer
    scales = [scale_of(block.mixer, config.dim) for block in config.stacks()["decoder"].blocks[:2]]
    return {
        "scale_attn_weights": scales[0] != 1.0 or mixer.width(config.dim) == 1,
        # The second layer's scores are half as large as the first's.
        "scale_attn_by_inverse_layer_idx": len(scales) == 2 and isclose(2 * scales[1], scales[0], rel_tol=1e-9),
    }


FIELDS = FieldTable(
    "GPT-2's config.json",
    {
        "decoder.block.ffn.kind": "mlp",
        "decoder.block.norm.kind": "layer",
        "decoder.entry.positions": "learned",
    },
    (
        FieldRow("vocab_size", 50257, "vocab_size"),
        FieldRow("n_positions", 1024, "context"),
        FieldRow("n_embd", 768, "dim"),
        FieldRow("n_layer", 12, "decoder.depth"),
        FieldRow("n_head", 12, "decoder.block.mixer.heads"),
        FieldRow("n_inner", None, "decoder.block.ffn.hidden"),
        FieldRow("activation_function", "gelu_new", "decoder.block.ffn.activation", ACTIVATION),
        FieldRow("resid_pdrop", 0.1, "decoder.block.dropout"),
        FieldRow("embd_pdrop", 0.1, "decoder.entry.dropout"),
        FieldRow("attn_pdrop", 0.1, "decoder.block.mixer.dropout"),
        FieldRow("layer_norm_epsilon", 1e-5, "decoder.block.norm.eps"),
        FieldRow("initializer_range", 0.02, "initial.std"),
        FieldRow("tie_word_embeddings", True, "head.tied"),
        Part(
            {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
            _read_scales,
            _write_scales,
        ),
    ),
)

LAYER, BLOCK = "transformer.h.{i}.", "decoder.blocks.{i}."
TABLE = (
    TensorRow("transformer.wte.weight", ("embedding.weight",), Vocabulary()),
    TensorRow("transformer.wpe.weight", ("decoder.entry.positions.weight",)),
    *pair(LAYER + "ln_1", BLOCK + "mixer_residual.before"),
    *fused(LAYER + "attn.c_attn", BLOCK + "mixer", Fused(1, 3, each=Transposed()), Fused(0, 3)),
    TensorRow(LAYER + "attn.c_proj.weight", (BLOCK + "mixer.o.weight",), Transposed()),
    TensorRow(LAYER + "attn.c_proj.bias", (BLOCK + "mixer.o.bias",)),
    *pair(LAYER + "ln_2", BLOCK + "ffn_residual.before"),
    TensorRow(LAYER + "mlp.c_fc.weight", (BLOCK + "ffn.up.weight",), Transposed()),
    TensorRow(LAYER + "mlp.c_fc.bias", (BLOCK + "ffn.up.bias",)),
    TensorRow(LAYER + "mlp.c_proj.weight", (BLOCK + "ffn.down.weight",), Transposed()),
    TensorRow(LAYER + "mlp.c_proj.bias", (BLOCK + "ffn.down.bias",)),
    *pair("transformer.ln_f", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)
GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    fields=FIELDS,
    table=TABLE,
    names=Names(
        prefix="transformer.",
        # Older files contain the causal mask and its fill value.
        ignorable=(LAYER + "attn.bias", LAYER + "attn.masked_bias"),
        copies={"lm_head.weight": ("transformer.wte.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),)),
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)
