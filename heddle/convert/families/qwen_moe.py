"""Qwen2-MoE and Qwen3-MoE (Yang et al. 2024, 2025) in Hugging Face's format: Qwen's blocks with experts, stored one tensor per
expert. A Qwen2-MoE also has a shared expert with a sigmoid gate.
"""

from dataclasses import replace
from typing import Any

from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import layers, llama, qwen, rotary
from heddle.convert.families.family import Tensors
from heddle.convert.fields import (
    QKV,
    Data,
    FieldRow,
    Fields,
    FieldTable,
    Part,
    derived,
    heddle_activation,
    one_block,
)
from heddle.convert.mapping import TensorRow
from heddle.errors import HeddleError

# The name of the field depends on the version of Hugging Face transformers.
NUMBERS = ("num_experts", "num_local_experts")
NO_EXPERTS = MoEConfig(experts=1, active=1)  # of a model whose layers have none
ROWS = derived(
    qwen.ROWS,
    ("intermediate_size", "hidden_act"),
    hidden_size=2048,
    num_hidden_layers=24,
    num_key_value_heads=4,
)


def experts(default_experts: int, **defaults: Any) -> Part:
    """The fields of the experts, and of the layers that `mlp_only_layers` and `decoder_sparse_step` exclude.

    Args:
        default_experts: the default number of experts.
        defaults: the defaults of the other fields.
    """

    def read(f: Fields, data: Data) -> None:
        stack, step, only = data["decoder"], f["decoder_sparse_step"], f["mlp_only_layers"] or []
        if not isinstance(step, int) or step < 1:
            raise HeddleError(f"decoder_sparse_step = {step!r} in config.json: must be a whole number above 0")
        every = layers.numbers(stack["depth"])
        if not isinstance(only, list) or (every and any(number not in every for number in only)):
            raise HeddleError(
                f"mlp_only_layers = {only!r} in config.json: must be a list of numbers below {len(every)}"
            )
        activation = heddle_activation(f["hidden_act"], "hidden_act")
        stack["block"]["ffn"] |= {"hidden": f["intermediate_size"], "activation": activation, "bias": False}
        count = next((f[name] for name in NUMBERS if f[name] is not None), default_experts)
        moe = {
            "kind": "moe",
            "experts": count,
            "active": f["num_experts_per_tok"],
            "expert": {"kind": "gated", "hidden": f["moe_intermediate_size"], "activation": activation},
            "renormalise": f["norm_topk_prob"],
        }
        dense = [number for number in every if number in only or (number + 1) % step or count == 0]
        layers.set_experts(stack, dense, moe)

    return Part(
        {
            "hidden_act": "silu", "num_experts": None, "num_local_experts": None, "norm_topk_prob": False,
            "decoder_sparse_step": 1, "mlp_only_layers": None, **defaults,
        },
        read,
        _write_experts,
    )  # fmt: skip


def _write_experts(config: TransformerConfig) -> Data:
    moe, fields = layers.expert_fields(config, NO_EXPERTS)
    return {
        **fields,
        "num_experts": moe.experts,
        "norm_topk_prob": moe.renormalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": layers.without_experts(config),
    }


def _read_shared(f: Fields, data: Data) -> None:
    ffn = data["decoder"]["block"]["ffn"]
    if ffn["kind"] == "moe":
        ffn |= {"shared": 1, "shared_hidden": f["shared_expert_intermediate_size"], "shared_gate": True}


def _write_shared(config: TransformerConfig) -> Data:
    moe, _ = layers.expert_fields(config, NO_EXPERTS)
    width = config.dim if moe is NO_EXPERTS else max(moe.shared, 1) * moe.shared_width(config.dim)
    return {"shared_expert_intermediate_size": width}


def _read_window(f: Fields, data: Data) -> None:
    data["decoder"]["block"]["mixer"] |= {"window": f["sliding_window"]} if f["use_sliding_window"] else {}


def _write_window(config: TransformerConfig) -> Data:
    window = one_block(config).mixer.window
    return {"use_sliding_window": window is not None, "sliding_window": window}


MLP, FFN = llama.LAYER + "mlp.", llama.BLOCK + "ffn."
EXPERTS = (
    TensorRow(MLP + "gate.weight", (FFN + "router.weight",)),
    TensorRow(MLP + "experts.{e}.gate_proj.weight", (FFN + "experts.gate",)),
    TensorRow(MLP + "experts.{e}.up_proj.weight", (FFN + "experts.up",)),
    TensorRow(MLP + "experts.{e}.down_proj.weight", (FFN + "experts.down",)),
)
QWEN3_MOE = replace(
    llama.LLAMA,
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    fields=FieldTable(
        "Qwen3-MoE's config.json",
        {**llama.CONSTANTS, **qwen.QK_NORM},
        (
            *derived(ROWS, rms_norm_eps=llama.QK_EPS),
            rotary.angles(),
            experts(128, intermediate_size=6144, moe_intermediate_size=768, num_experts_per_tok=8),
            # A window applies to all layers here.
            Part({"use_sliding_window": False, "sliding_window": 4096}, _read_window, _write_window),
            llama.WHOLE_HEADS,
        ),
        rotary.FIXED,
        idle=("max_window_layers",),  # written by some versions of Hugging Face transformers
    ),
    table=(*llama.TABLE, *llama.QK_NORMS, *EXPERTS),
    ids={},
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2), GatedConfig())),
)


def gated(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """An equivalent model with gated shared experts: doubled, with a gate that is always 1/2, since 2 · sigmoid(0) = 1."""
    stack = config.decoder
    feeds = [] if stack is None else [block.ffn for block in stack.blocks]
    ungated = [i for i, ffn in enumerate(feeds) if isinstance(ffn, MoEConfig) and ffn.shared and not ffn.shared_gate]
    if stack is None or not ungated:
        return config, tensors
    rewritten = dict(tensors)
    for name in (f"decoder.blocks.{i}.ffn.shared.down.weight" for i in ungated):
        if name in tensors:  # absent when only the config is rewritten
            rewritten[name] = 2 * tensors[name]
            rewritten[name.replace("shared.down", "shared_gate")] = tensors[name].new_zeros(1, config.dim)
    overrides = [*stack.to_dict()["overrides"], *layers.overrides(ungated, stack.depth, {"ffn": {"shared_gate": True}})]
    return config.override({"decoder.overrides": overrides}), rewritten


QWEN2_MOE = replace(
    llama.LLAMA,
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    fields=FieldTable(
        "Qwen2-MoE's config.json",
        llama.CONSTANTS,
        (
            *derived(ROWS, ("attention_bias",), num_attention_heads=16, num_key_value_heads=16),
            FieldRow(
                "qkv_bias", True, "decoder.block.mixer.bias", replace(QKV, to_published=lambda names: "q" in names)
            ),
            rotary.angles(),
            experts(60, intermediate_size=5632, moe_intermediate_size=1408, num_experts_per_tok=4),
            Part({"shared_expert_intermediate_size": 5632}, _read_shared, _write_shared),
            # Without `layer_types`, Hugging Face transformers gives every second layer below `max_window_layers` a window.
            layers.qwen_windows(lambda number, count: number % 2 == 0 and number < count),
            llama.WHOLE_HEADS,
        ),
        rotary.FIXED,
    ),
    table=(
        *llama.TABLE,
        *EXPERTS,
        TensorRow(MLP + "shared_expert.gate_proj.weight", (FFN + "shared.gate.weight",)),
        TensorRow(MLP + "shared_expert.up_proj.weight", (FFN + "shared.up.weight",)),
        TensorRow(MLP + "shared_expert.down_proj.weight", (FFN + "shared.down.weight",)),
        TensorRow(MLP + "shared_expert_gate.weight", (FFN + "shared_gate.weight",)),
    ),
    options=replace(llama.OPTIONS, ffns=(MoEConfig(experts=2, shared=1), GatedConfig())),
    ids={},
    rewrite=gated,
)
