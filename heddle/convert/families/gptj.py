"""GPT-J (Wang and Komatsuzaki 2021) in Hugging Face's format: one norm for both branches, neighbouring channels rotate."""

from collections.abc import Mapping
from math import inf, nextafter
from typing import Any

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families.family import (
    Family,
    FamilyOptions,
    heddle_activation,
    one_block,
    published_activation,
    read_fields,
)
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pair
from heddle.errors import HeddleError

ARCHITECTURE = "GPTJForCausalLM"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64, "n_inner": None,
    "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02, "tie_word_embeddings": False,
}  # fmt: skip
FIXED = {"rotary": True, "scale_attn_weights": True}

LAYER, BLOCK = "transformer.h.{i}.", "decoder.blocks.{i}."
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
TABLE = (
    TensorRow("transformer.wte.weight", ("embedding.weight",), Vocabulary()),
    *pair(LAYER + "ln_1", BLOCK + "mixer_residual.before"),
    *(
        TensorRow(f"{LAYER}attn.{published}.weight", (f"{BLOCK}mixer.{heddle}.weight",))
        for published, heddle in PROJECTIONS.items()
    ),
    *pair(LAYER + "mlp.fc_in", BLOCK + "ffn.up"),
    *pair(LAYER + "mlp.fc_out", BLOCK + "ffn.down"),
    *pair("transformer.ln_f", "decoder.final_norm"),
    TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
    TensorRow("lm_head.bias", ("head.bias",), Vocabulary()),
)


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


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A GPT-J `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(published, ARCHITECTURE, DEFAULTS, FIXED)
    fraction = _fraction(f["rotary_dim"], f["n_embd"], f["n_head"])
    block = {
        "mixer": {
            "kind": "attention",
            "heads": f["n_head"],
            "bias": False,
            "relative": {"kind": "rotary", "pairing": "neighbours", "fraction": fraction},
            "dropout": f["attn_pdrop"],
        },
        "ffn": {
            "kind": "mlp",
            "hidden": f["n_inner"],
            "activation": heddle_activation(f["activation_function"], "activation_function"),
        },
        "norm": {"kind": "layer", "eps": f["layer_norm_epsilon"]},
        "wiring": "parallel_one_norm",
        "dropout": f["resid_pdrop"],
    }
    data = {
        "vocab_size": f["vocab_size"],
        "dim": f["n_embd"],
        "context": f["n_positions"],
        "decoder": {"depth": f["n_layer"], "block": block, "entry": {"dropout": f["embd_pdrop"]}},
        "head": {"tied": f["tie_word_embeddings"], "bias": True},
        "initial": {"std": f["initializer_range"]},
    }
    return TransformerConfig.of(data, where="GPT-J's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest GPT-J `config.json`."""
    block, stack = one_block(config), config.stacks()["decoder"]
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_embd": config.dim,
        "n_layer": stack.depth,
        "n_head": block.mixer.heads,
        "rotary_dim": block.mixer.relative.rotated_dim(block.mixer.width(config.dim)),
        "n_inner": block.ffn.width(config.dim),
        "activation_function": published_activation(block.ffn.activation),
        "resid_pdrop": block.dropout,
        "embd_pdrop": stack.entry.dropout,
        "attn_pdrop": block.mixer.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "initializer_range": config.initial.std,
        "tie_word_embeddings": getattr(config.head, "tied", False),
    }


GPTJ = Family(
    name="gptj",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    names=Names(
        prefix="transformer.",
        ignorable=tuple(LAYER + f"attn.{name}" for name in ("bias", "masked_bias", "embed_positions")),
        copies={"lm_head.weight": ("transformer.wte.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(
        norm=LayerNormConfig(),
        ffns=(MLPConfig(),),
        relatives=(RotaryConfig(pairing="neighbours"),),
        head=LanguageHeadConfig(tied=False, bias=True),
    ),
    ids={"bos_token_id": 50256, "eos_token_id": 50256},
)
