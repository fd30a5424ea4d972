"""GPT-2 (Radford et al. 2019) in Hugging Face's format: matrices are stored input first, q, k and v as one."""

from collections.abc import Mapping
from math import isclose
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Fused, Names, TensorRow, Transposed, Vocabulary, fused, pair

ARCHITECTURE = "GPT2LMHeadModel"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
    "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": True,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
}  # fmt: skip
OPTIONS = FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),))

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


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A GPT-2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, {})
    block = {
        "mixer": {"kind": "attention", "heads": f["n_head"], "dropout": f["attn_pdrop"]},
        "ffn": {
            "kind": "mlp",
            "hidden": f["n_inner"],
            "activation": heddle_activation(f["activation_function"], "activation_function"),
        },
        "norm": {"kind": "layer", "eps": f["layer_norm_epsilon"]},
        "dropout": f["resid_pdrop"],
    }
    factors = _factors(f)
    block["mixer"] |= {"scale": factors[0]} if factors else {}
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["n_embd"],
        "context": f["n_positions"],
        "decoder": {
            "depth": f["n_layer"],
            "block": block,
            "overrides": [
                {"layers": str(i), "block": {"mixer": {"scale": factor}}}
                for i, factor in enumerate(factors)
                if factor != factors[0]
            ],
            "entry": {"positions": "learned", "dropout": f["embd_pdrop"]},
        },
        "head": {"tied": f["tie_word_embeddings"]},
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="GPT-2's config.json in heddle's terms")


def _factors(f: Mapping[str, Any]) -> list[float]:
    """The factor on the scores of each layer; empty if it is the default 1/√d in all layers."""
    scaled, by_layer, dim, heads = (
        f[name] for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "n_embd", "n_head")
    )
    possible = all(
        isinstance(size, int) and size > 0 for size in (dim, heads)
    )  # other values raise an error where they are read
    if (scaled and not by_layer) or not possible:
        return []
    factor = (dim // heads or 1) ** -0.5 if scaled else 1.0
    return [factor / (i + 1 if by_layer else 1) for i in layers.numbers(f["n_layer"])]


def _is_by_layer(config: TransformerConfig) -> bool:
    """Whether the second layer's scores are half as large as the first's."""
    scales = [_scale(block.mixer, config.dim) for block in config.stacks()["decoder"].blocks[:2]]
    return len(scales) == 2 and isclose(2 * scales[1], scales[0], rel_tol=1e-9)


def _scale(mixer: Any, dim: int) -> float:
    scale = getattr(mixer, "scale", 1.0)
    if isinstance(scale, str):
        return float((mixer.width(dim) if scale == "head_dim" else dim) ** -0.5)
    return float(scale)


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest GPT-2 `config.json`."""
    block, entry = one_block(config), config.stacks()["decoder"].entry
    head: Any = config.head
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_embd": config.dim,
        "n_layer": config.stacks()["decoder"].depth,
        "n_head": block.mixer.heads,
        "n_inner": block.ffn.width(config.dim),
        "activation_function": published_activation(block.ffn.activation),
        "resid_pdrop": block.dropout,
        "embd_pdrop": entry.dropout,
        "attn_pdrop": block.mixer.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "initializer_range": config.initial.std,
        "tie_word_embeddings": head.tied,
        # The comparison of the round trip reports any other scale.
        "scale_attn_weights": _scale(block.mixer, config.dim) != 1.0 or block.mixer.width(config.dim) == 1,
        "scale_attn_by_inverse_layer_idx": _is_by_layer(config),
    }


GPT2 = Family(
    name="gpt2",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="transformer.",
        # Older files contain the causal mask and its fill value.
        ignorable=(LAYER + "attn.bias", LAYER + "attn.masked_bias"),
        copies={"lm_head.weight": ("transformer.wte.weight",)},
    ),
    layers={"decoder": LAYER},
    options=OPTIONS,
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)
