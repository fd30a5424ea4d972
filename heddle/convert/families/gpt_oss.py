"""gpt-oss (OpenAI 2025) in Hugging Face's format: attention sinks, windows in every second layer, bounded experts with biases."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.fields import Change, Data, FieldRow, Fields, FieldTable, Part, derived, written
from heddle.convert.mapping import TensorRow
from heddle.errors import HeddleError

BASE = 150_000.0
ACTIVATION, ALPHA, LIMIT = "quick_gelu", 1.702, 7.0  # act(x) = x · sigmoid(alpha · x)
# The default scaling of the angles.
SCALING = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
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


ANGLES = rotary.angles(BASE)
WINDOWS = layers.alternating_windows(128)


def _read_angles(f: Fields, data: Data) -> None:
    default = {"rope_parameters": SCALING} if f["rope_parameters"] is None and f["rope_scaling"] is None else {}
    ANGLES.read({**f, **default}, data)


def _read_windows(f: Fields, data: Data) -> None:
    WINDOWS.read(f, data)
    if f["sliding_window"] is None and (f["layer_types"] is None or layers.LOCAL in f["layer_types"]):
        raise HeddleError(f"layer_types in config.json has {layers.LOCAL}, but sliding_window is null")


def _packed(published: Fields) -> tuple[str, ...]:
    """The field of the packing that heddle unpacks."""
    quantization = published.get("quantization_config")
    is_packed = isinstance(quantization, Mapping) and quantization.get("quant_method") == PACKED
    return ("quantization_config",) if is_packed else ()


FIELDS = FieldTable(
    "gpt-oss's config.json",
    {
        **llama.CONSTANTS,
        "decoder.block.mixer.sinks": True,
        "decoder.block.ffn.kind": "moe",
        "decoder.block.ffn.router_bias": True,
        "decoder.block.ffn.renormalise": True,
        "decoder.block.ffn.expert.kind": "gated",
        "decoder.block.ffn.expert.activation": ACTIVATION,
        "decoder.block.ffn.expert.bias": True,
        "decoder.block.ffn.expert.plus_one": True,
    },
    (
        *derived(
            llama.ROWS,
            ("intermediate_size", "hidden_act", "mlp_bias"),
            vocab_size=201088,
            hidden_size=2880,
            num_hidden_layers=36,
            num_attention_heads=64,
            num_key_value_heads=8,
            head_dim=64,
            rms_norm_eps=1e-5,
            max_position_embeddings=131072,
            attention_bias=True,
        ),
        Part(ANGLES.defaults, _read_angles, ANGLES.write),
        written(hidden_act="silu"),
        FieldRow("intermediate_size", 2880, "decoder.block.ffn.expert.hidden"),
        FieldRow("num_local_experts", 128, "decoder.block.ffn.experts"),
        FieldRow("num_experts_per_tok", 4, "decoder.block.ffn.active"),
        FieldRow(
            "swiglu_limit",
            LIMIT,
            "decoder.block.ffn.expert.limit",
            Change(to_published=lambda limit: limit or LIMIT),
        ),
        Part(WINDOWS.defaults, _read_windows, WINDOWS.write),
        llama.WHOLE_HEADS,
    ),
    fixed={**rotary.FIXED, "hidden_act": "silu", "swiglu_alpha": ALPHA},
    # Names of other fields in OpenAI's own files, which Hugging Face transformers does not read.
    idle=("initial_context_length", "experts_per_token"),
    more_idle=_packed,
)
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
GPT_OSS = replace(
    llama.LLAMA,
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    fields=FIELDS,
    table=TABLE,
    ids={},
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2, expert=GatedConfig(activation=ACTIVATION)),)),
)
