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
    one_block,
    our_activation,
    read_fields,
    their_activation,
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

THEIRS, OURS = "transformer.h.{i}.", "decoder.blocks.{i}."
TABLE = (
    TensorRow("transformer.wte.weight", ("embedding.weight",), Vocabulary()),
    TensorRow("transformer.wpe.weight", ("decoder.entry.positions.weight",)),
    *pair(THEIRS + "ln_1", OURS + "mixer_residual.before"),
    *fused(THEIRS + "attn.c_attn", OURS + "mixer", Fused(1, 3, each=Transposed()), Fused(0, 3)),
    TensorRow(THEIRS + "attn.c_proj.weight", (OURS + "mixer.o.weight",), Transposed()),
    TensorRow(THEIRS + "attn.c_proj.bias", (OURS + "mixer.o.bias",)),
    *pair(THEIRS + "ln_2", OURS + "ffn_residual.before"),
    TensorRow(THEIRS + "mlp.c_fc.weight", (OURS + "ffn.up.weight",), Transposed()),
    TensorRow(THEIRS + "mlp.c_fc.bias", (OURS + "ffn.up.bias",)),
    TensorRow(THEIRS + "mlp.c_proj.weight", (OURS + "ffn.down.weight",), Transposed()),
    TensorRow(THEIRS + "mlp.c_proj.bias", (OURS + "ffn.down.bias",)),
    *pair("transformer.ln_f", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
)


def to_config(found: Mapping[str, Any]) -> TransformerConfig:
    """A GPT-2 `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, ARCHITECTURE, DEFAULTS, {})
    block = {
        "mixer": {"kind": "attention", "heads": f["n_head"], "dropout": f["attn_pdrop"]},
        "ffn": {
            "kind": "mlp",
            "hidden": f["n_inner"],
            "activation": our_activation(f["activation_function"], "activation_function"),
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
    """The factor on the scores of each layer; empty if it is the usual 1/√d in all of them."""
    whole, by_layer, dim, heads = (
        f[name] for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "n_embd", "n_head")
    )
    possible = all(
        isinstance(size, int) and size > 0 for size in (dim, heads)
    )  # other values raise an error where they are read
    if (whole and not by_layer) or not possible:
        return []
    factor = (dim // heads or 1) ** -0.5 if whole else 1.0
    return [factor / (i + 1 if by_layer else 1) for i in layers.numbers(f["n_layer"])]


def _is_by_layer(config: TransformerConfig) -> bool:
    """Whether the second layer's scores are half as large as the first's."""
    scales = [_scale(block.mixer, config.dim) for block in config.stacks()["decoder"].blocks[:2]]
    return len(scales) == 2 and isclose(2 * scales[1], scales[0], rel_tol=1e-9)


def _scale(mixer: Any, dim: int) -> float:
    said = getattr(mixer, "scale", 1.0)
    if isinstance(said, str):
        return float((mixer.width(dim) if said == "head_dim" else dim) ** -0.5)
    return float(said)


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
        "activation_function": their_activation(block.ffn.activation),
        "resid_pdrop": block.dropout,
        "embd_pdrop": entry.dropout,
        "attn_pdrop": block.mixer.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "initializer_range": config.initial.std,
        "tie_word_embeddings": head.tied,
        # For any other scale, the later comparison reports that the family does not have it.
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
        # Older files keep the causal mask and its filler.
        ignorable=(THEIRS + "attn.bias", THEIRS + "attn.masked_bias"),
        copies={"lm_head.weight": ("transformer.wte.weight",)},
    ),
    layers={"decoder": THEIRS},
    options=OPTIONS,
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)
