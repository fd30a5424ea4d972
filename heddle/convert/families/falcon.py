"""Falcon (Almazrouei et al. 2023) in Hugging Face's format: parallel branches with one or two norms and few key heads, or serial
branches with ALiBi (falcon-rw)."""

from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import TransformerConfig
from heddle.config.positions import AlibiConfig, RotaryConfig
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
    own_code,
)
from heddle.convert.mapping import Grouped, Names, TensorRow, Vocabulary, fused, pair
from heddle.errors import HeddleError

# Hugging Face transformers rounds each slope, and each slope · position, to bf16. Far from the first token, scores then depend on
# absolute positions. heddle rounds neither. With these numbers of heads, bf16 represents the slopes exactly, and up to this context
# the positions.
EXACT_HEADS, EXACT_CONTEXT = (1, 2, 4, 8), 257
ANGLES = rotary.angles()


def _two(config: TransformerConfig) -> bool:
    return bool(one_block(config).wiring == "parallel")


def _one(config: TransformerConfig) -> bool:
    return not _two(config)


def _wiring(f: Fields) -> str:
    norms = f["num_ln_in_parallel_attn"]
    if not f["parallel_attn"]:
        if f["new_decoder_architecture"]:
            raise HeddleError("parallel_attn = False in config.json: not possible with new_decoder_architecture")
        return "serial"
    if norms not in (None, 1, 2):
        raise HeddleError(f"num_ln_in_parallel_attn = {norms!r} in config.json: must be 1 or 2")
    if not f["new_decoder_architecture"] and norms == 2:
        raise HeddleError("num_ln_in_parallel_attn = 2 in config.json: only possible with new_decoder_architecture")
    return "parallel" if f["new_decoder_architecture"] and norms != 1 else "parallel_one_norm"


def _read_wiring(f: Fields, data: Data) -> None:
    block = data["decoder"]["block"]
    block["wiring"] = _wiring(f)
    kv_heads = f["num_kv_heads"] if f["new_decoder_architecture"] else 1 if f["multi_query"] else None
    block["mixer"]["kv_heads"] = kv_heads


def _write_wiring(config: TransformerConfig) -> Data:
    """The fields of the older of its two architectures if that can express the model."""
    block = one_block(config)
    kv_heads = block.mixer.key_heads()
    new = block.wiring == "parallel" or (block.wiring == "parallel_one_norm" and kv_heads not in (1, block.mixer.heads))
    return {
        "num_ln_in_parallel_attn": (2 if block.wiring == "parallel" else 1) if new else None,
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": new,
        "multi_query": kv_heads == 1,
        "parallel_attn": block.wiring != "serial",
    }


def _read_positions(f: Fields, data: Data) -> None:
    """Rotary positions, or ALiBi slopes, which are divided by the root of the head's width like the scores."""
    if not f["alibi"]:
        ANGLES.read(f, data)
        return
    width, heads = f["hidden_size"], f["num_attention_heads"]
    if not (isinstance(width, int) and isinstance(heads, int) and width >= heads > 0):
        raise HeddleError(
            f"hidden_size = {width!r} and num_attention_heads = {heads!r} in config.json: the heads would have no channels"
        )
    data["decoder"]["block"]["mixer"]["relative"] = {"kind": "alibi", "factor": (width // heads) ** -0.5}


def _write_positions(config: TransformerConfig) -> Data:
    """The fields of rotary positions or ALiBi.

    Raises:
        HeddleError: Hugging Face transformers would round the slopes.
    """
    mixer = one_block(config).mixer
    if not isinstance(mixer.relative, AlibiConfig):
        return {"alibi": False, **ANGLES.write(config)}
    if mixer.heads not in EXACT_HEADS or config.context > EXACT_CONTEXT:
        raise HeddleError(
            f"{FALCON.architecture} rounds ALiBi to bf16, which is exact only for {', '.join(map(str, EXACT_HEADS))} heads "
            f"and a context of at most {EXACT_CONTEXT}"
        )
    return {"alibi": True}


FIELDS = FieldTable(
    "Falcon's config.json",
    {"decoder.block.ffn.kind": "mlp", "decoder.block.norm.kind": "layer"},
    (
        FieldRow("vocab_size", 65024, "vocab_size"),
        FieldRow("hidden_size", 4544, "dim"),
        FieldRow("num_hidden_layers", 32, "decoder.depth"),
        FieldRow("num_attention_heads", 71, "decoder.block.mixer.heads"),
        FieldRow("layer_norm_epsilon", 1e-5, "decoder.block.norm.eps"),
        FieldRow("initializer_range", 0.02, "initial.std"),
        FieldRow("hidden_dropout", 0.0, "decoder.block.dropout"),
        FieldRow("attention_dropout", 0.0, "decoder.block.mixer.dropout"),
        Part(
            {
                "num_ln_in_parallel_attn": None,
                "num_kv_heads": None,
                "new_decoder_architecture": False,
                "multi_query": True,
                "parallel_attn": True,
            },
            _read_wiring,
            _write_wiring,
        ),
        FieldRow("bias", False, ("decoder.block.mixer.bias", "decoder.block.ffn.bias"), BIAS),
        FieldRow("max_position_embeddings", 2048, "context"),
        FieldRow("ffn_hidden_size", None, "decoder.block.ffn.hidden"),
        FieldRow("activation", "gelu", "decoder.block.ffn.activation", ACTIVATION),
        FieldRow("tie_word_embeddings", True, "head.tied"),
        Part({**ANGLES.defaults, "alibi": False}, _read_positions, _write_positions),
    ),
    fixed={**rotary.FIXED, "apply_residual_connection_post_layernorm": False},
    more_idle=own_code("Falcon"),
)

LAYER, BLOCK = "transformer.h.{i}.", "decoder.blocks.{i}."
FALCON = Family(
    name="falcon",
    architecture="FalconForCausalLM",
    fields=FIELDS,
    table=(
        TensorRow("transformer.word_embeddings.weight", ("embedding.weight",), Vocabulary()),
        *pair(LAYER + "input_layernorm", BLOCK + "mixer_residual.before", when=_one),
        *pair(LAYER + "post_attention_layernorm", BLOCK + "ffn_residual.before", when=_one),
        *pair(LAYER + "ln_attn", BLOCK + "mixer_residual.before", when=_two),
        *pair(LAYER + "ln_mlp", BLOCK + "ffn_residual.before", when=_two),
        *fused(LAYER + "self_attention.query_key_value", BLOCK + "mixer", Grouped(), Grouped()),
        *pair(LAYER + "self_attention.dense", BLOCK + "mixer.o"),
        *pair(LAYER + "mlp.dense_h_to_4h", BLOCK + "ffn.up"),
        *pair(LAYER + "mlp.dense_4h_to_h", BLOCK + "ffn.down"),
        *pair("transformer.ln_f", "decoder.final_norm"),
        TensorRow("lm_head.weight", ("head.weight",), Vocabulary()),
    ),
    names=Names(
        prefix="transformer.",
        ignorable=(LAYER + "self_attention.rotary_emb.inv_freq",),
        copies={"lm_head.weight": ("transformer.word_embeddings.weight",)},
    ),
    layers={"decoder": LAYER},
    options=FamilyOptions(norm=LayerNormConfig(), ffns=(MLPConfig(),), relatives=(RotaryConfig(), AlibiConfig())),
    ids={"bos_token_id": 11, "eos_token_id": 11},
    attention="sdpa",  # its eager attention adds ALiBi twice
)
