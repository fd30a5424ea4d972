"""gpt-oss (OpenAI 2025) in Hugging Face's format: attention sinks, windows in every second layer, bounded experts with biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.families.family import one_block, read_fields, without
from heddle.convert.mapping import TensorRow
from heddle.errors import HeddleError

ARCHITECTURE = "GptOssForCausalLM"
BASE = 150_000.0
ACTIVATION, ALPHA, LIMIT = "quick_gelu", 1.702, 7.0  # act(x) = x · sigmoid(alpha · x)
# The default scaling of the angles.
SCALING = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    **without(llama.DEFAULTS, "mlp_bias", "hidden_act"), "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "attention_bias": True, "sliding_window": 128, "layer_types": None,
    "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": LIMIT,
}  # fmt: skip
FIXED = {**rotary.FIXED, "hidden_act": "silu", "swiglu_alpha": ALPHA}
# Names of other fields in OpenAI's own files, which Hugging Face transformers does not read.
IDLE = ("initial_context_length", "experts_per_token")
PACKED = "mxfp4"

MLP, FFN = llama.LAYER + "mlp.", llama.BLOCK + "ffn."


class InputFirst:
    """Experts' matrices stored input first."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (tensor.transpose(1, 2),)

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return tensors[0].transpose(1, 2)


class Alternating:
    """Experts' gate and up interleaved along the last axis of one tensor; matrices are stored input first."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        rows = tensor.transpose(1, 2) if tensor.dim() == 3 else tensor
        return rows[:, ::2], rows[:, 1::2]

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        gate, up = tensors
        rows = gate.new_empty(gate.shape[0], 2 * gate.shape[1], *gate.shape[2:])
        rows[:, ::2], rows[:, 1::2] = gate, up
        return rows.transpose(1, 2) if rows.dim() == 3 else rows


TABLE = (
    *(row for row in llama.TABLE if ".mlp." not in row.published),
    TensorRow(llama.LAYER + "self_attn.sinks", (llama.BLOCK + "mixer.sinks",)),
    TensorRow(MLP + "router.weight", (FFN + "router.weight",)),
    TensorRow(MLP + "router.bias", (FFN + "router.score_bias",)),
    TensorRow(MLP + "experts.gate_up_proj", (FFN + "experts.gate", FFN + "experts.up"), Alternating()),
    TensorRow(MLP + "experts.gate_up_proj_bias", (FFN + "experts.gate_bias", FFN + "experts.up_bias"), Alternating()),
    TensorRow(MLP + "experts.down_proj", (FFN + "experts.down",), InputFirst()),
    TensorRow(MLP + "experts.down_proj_bias", (FFN + "experts.down_bias",)),
)


def to_config(published: Mapping[str, Any]) -> TransformerConfig:
    """A gpt-oss `config.json` as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    quantization = published.get("quantization_config")
    is_packed = isinstance(quantization, Mapping) and quantization.get("quant_method") == PACKED
    f = read_fields(
        published, ARCHITECTURE, DEFAULTS, FIXED, idle=(*IDLE, *(("quantization_config",) if is_packed else ()))
    )
    if f["rope_parameters"] is None and f["rope_scaling"] is None:
        f["rope_parameters"] = SCALING
    data = llama.config_data({**f, "mlp_bias": False, "hidden_act": "silu"}, BASE)
    stack = data["decoder"]
    stack["block"]["mixer"]["sinks"] = True
    expert = {
        "kind": "gated",
        "hidden": f["intermediate_size"],
        "activation": ACTIVATION,
        "bias": True,
        "plus_one": True,
    }
    stack["block"]["ffn"] = {
        "kind": "moe",
        "experts": f["num_local_experts"],
        "active": f["num_experts_per_tok"],
        "expert": {**expert, "limit": f["swiglu_limit"]},
        "router_bias": True,
        "renormalise": True,
    }
    local = layers.local_layers(f["layer_types"], stack["depth"], layers.numbers(stack["depth"])[::2])
    if local and f["sliding_window"] is None:
        raise HeddleError(f"layer_types in config.json has {layers.LOCAL}, but sliding_window is null")
    layers.set_window(stack, local, f["sliding_window"])
    return TransformerConfig.of(data, where="gpt-oss's config.json in heddle's terms")


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest gpt-oss `config.json`."""
    ffn = one_block(config).ffn
    window, types = layers.windows_and_types(config.stacks()["decoder"])
    return {
        **without(llama.from_config(config), "mlp_bias"),
        "hidden_act": "silu",
        "intermediate_size": ffn.width(config.dim),
        "num_local_experts": ffn.experts,
        "num_experts_per_tok": ffn.active,
        "swiglu_limit": getattr(ffn.expert, "limit", None) or LIMIT,
        # Hugging Face transformers builds the mask of the window even if no layer uses it.
        "sliding_window": window or DEFAULTS["sliding_window"],
        "layer_types": types,
    }


GPT_OSS = replace(
    llama.LLAMA,
    name="gpt_oss",
    architecture=ARCHITECTURE,
    to_config=to_config,
    from_config=from_config,
    table=TABLE,
    ids={},
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2, expert=GatedConfig(activation=ACTIVATION)),)),
)
