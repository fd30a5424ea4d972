"""The architectures of llama.cpp: the published families that it runs, their names in GGUF, and the settings that it lacks.

Names of metadata are those of GGUF, without the leading name of the architecture.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heddle.config.model import TransformerConfig
from heddle.config.positions import LinearScaling, Llama3Scaling, RotaryConfig, YarnScaling
from heddle.convert.families.rotary import plain_base
from heddle.convert.fields import Fields, one_block, without
from heddle.convert.llama_cpp_limits import (
    CAPS,
    Obstacle,
    gemma2_obstacles,
    gemma3_obstacles,
    is_scaled,
    rotary_obstacles,
    smollm3_obstacles,
)
from heddle.nn.position import SCALINGS

Change = Callable[[str, Tensor, TransformerConfig], Tensor]

FREQUENCIES = "rope_freqs.weight"
TANH = ("gelu_new", "gelu_pytorch_tanh")  # llama.cpp's gelu is the tanh approximation
EXPERT = re.compile(r"\.experts\.\d+\.")
SIZES = {
    "max_position_embeddings": "context_length", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count", "vocab_size": "vocab_size",
}  # fmt: skip
LLAMA_SIZES = {
    **SIZES, "num_key_value_heads": "attention.head_count_kv", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
EXPERTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
GEMMA_SIZES = {**LLAMA_SIZES, "sliding_window": "attention.sliding_window"}


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's architectures, for one class of Hugging Face transformers.

    Attributes:
        name: its `general.architecture`.
        keys: fields of config.json, and the metadata that has their values.
        only: fields of config.json, and the values that llama.cpp supports.
        scalings: the scalings of rotary angles that it supports, in addition to a larger base.
        square: whether all heads together must be as wide as the model.
        copied: whether a tied head is written as a second tensor.
        change: converts a published tensor, given its name.
        more: further metadata for a config.
        limits: further obstacles of a config.
    """

    name: str
    keys: Mapping[str, str]
    only: Mapping[str, tuple[Any, ...]]
    scalings: tuple[type, ...] = (LinearScaling, YarnScaling)
    square: bool = False
    copied: bool = False
    change: Change = lambda name, tensor, config: tensor
    more: Callable[[Fields, TransformerConfig], dict[str, Any]] = lambda published, config: {}
    limits: Callable[[Fields, TransformerConfig], Iterable[Obstacle]] = lambda published, config: ()

    def metadata(self, published: Fields, config: TransformerConfig) -> dict[str, Any]:
        """The metadata of a model, without that of its tokenizer.

        Args:
            published: its published config.json.
            config: its config, rewritten for the published family; it has no obstacles.
        """
        published = without_idle_window(published)
        mixer = one_block(config).mixer
        width = mixer.width(config.dim)
        fields = {key: published[field] for field, key in self.keys.items()}
        fields |= {"attention.head_count_kv": mixer.key_heads()}
        fields |= {"attention.key_length": width, "attention.value_length": width}
        if isinstance(mixer.relative, RotaryConfig):
            fields |= rotary_metadata(mixer.relative, width)
        return fields | self.more(published, config)

    def obstacles(self, published: Fields, config: TransformerConfig) -> Iterator[Obstacle]:
        """Why llama.cpp would compute something else. The arguments are those of `metadata`."""
        published = without_idle_window(published)
        for field, values in self.only.items():
            if published.get(field) not in values:
                supported = " or ".join(map(repr, values))
                text = f"{field} = {published.get(field)!r} in its config.json, and llama.cpp supports only {supported}"
                yield Obstacle(text, {field: values[0]})
        mixer = one_block(config).mixer
        width = mixer.width(config.dim)
        if self.square and mixer.heads * width != config.dim:
            yield Obstacle(
                f"{mixer.heads} heads of width {width}, and llama.cpp needs them as wide as dim = {config.dim}",
                {"head_dim": config.dim // mixer.heads},
            )
        if isinstance(mixer.relative, RotaryConfig):
            yield from rotary_obstacles(mixer.relative, width, self.scalings)
        yield from self.limits(published, config)

    def tensors(self, published: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
        """The published tensors as llama.cpp stores them, by their published names. Those of experts are stacked."""
        tensors: dict[str, Tensor] = {}
        experts: dict[str, list[Tensor]] = {}
        for name, tensor in published.items():
            changed = self.change(name, tensor, config)
            if EXPERT.search(name):
                experts.setdefault(EXPERT.sub(".experts.", name), []).append(changed)
            else:
                tensors[name] = changed
        return tensors | {name: torch.stack(stack) for name, stack in experts.items()}


def without_idle_window(published: Fields) -> Fields:
    """The fields, without a window that is in all layers and as long as the context."""
    window = published.get("sliding_window")
    if window is None or "layer_types" in published or window < published["max_position_embeddings"]:
        return published
    return {
        **published,
        "sliding_window": None,
        **({"use_sliding_window": False} if "use_sliding_window" in published else {}),
    }


def rotary_metadata(relative: RotaryConfig, width: int) -> dict[str, Any]:
    """The metadata of rotary positions in heads of `width` channels."""
    rotated, scaling = relative.rotated_dim(width), relative.scaling
    fields: dict[str, Any] = {"rope.dimension_count": rotated, "rope.freq_base": plain_base(relative, rotated)}
    if not is_scaled(relative):
        return fields
    if isinstance(scaling, LinearScaling | YarnScaling):
        fields |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        fields |= {"rope.scaling.original_context_length": scaling.original}
    return fields


def divisors(config: TransformerConfig) -> dict[str, Tensor]:
    """The tensor of divisors of the rotary frequencies, for a model with Llama 3's scaling."""
    mixer = one_block(config).mixer
    relative = mixer.relative
    if not isinstance(relative, RotaryConfig) or not isinstance(relative.scaling, Llama3Scaling):
        return {}
    rotated = relative.rotated_dim(mixer.width(config.dim))
    plain = relative.base ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    slowed = SCALINGS[Llama3Scaling](relative.scaling)(plain, relative.base, rotated)
    return {FREQUENCIES: (plain / slowed).float()}


def interleaved(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    """Queries and keys with reordered rows: neighbouring channels rotate together, not the two halves of a head."""
    mixer = one_block(config).mixer
    heads = {"q_proj": mixer.heads, "k_proj": mixer.key_heads()}.get(name.split(".")[-2])
    return tensor if heads is None else tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def output_first(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    """GPT-2's matrices, which are published input first."""
    return tensor.T if re.search(r"\.c_(attn|proj|fc)\.weight$", name) else tensor


def ungrouped(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    """All queries, then all keys and all values, from a tensor that is grouped by head."""
    if ".query_key_value." not in name:
        return tensor
    by_head: Tensor = tensor.unflatten(0, (one_block(config).mixer.heads, 3, -1))
    return by_head.transpose(0, 1).flatten(0, 2)


def _gemma2(published: Fields, config: TransformerConfig) -> dict[str, Any]:
    return {name: published[name] for name in CAPS}


def _gemma3(published: Fields, config: TransformerConfig) -> dict[str, Any]:
    """The rotary bases of local and global layers."""
    fields: dict[str, Any] = {}
    for block in config.stacks()["decoder"].blocks:
        mixer: Any = block.mixer
        rotary = rotary_metadata(mixer.relative, published["head_dim"])
        fields |= {"rope.freq_base_swa": rotary["rope.freq_base"]} if mixer.window is not None else rotary
    return fields


def _experts(published: Fields, config: TransformerConfig) -> dict[str, Any]:
    widths = {"expert_feed_forward_length": "moe_intermediate_size"}
    shared = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
    return {key: published[field] for key, field in (widths | shared).items() if field in published}


def _granite(published: Fields, config: TransformerConfig) -> dict[str, Any]:
    """Its four factors, which must be written: llama.cpp reads 0 as no factor."""
    names = {
        "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
    }  # fmt: skip
    return {key: float(published[field]) for field, key in names.items()}


def _cohere(published: Fields, config: TransformerConfig) -> dict[str, Any]:
    return {"logit_scale": float(published["logit_scale"])}


LLAMA = Architecture(
    "llama",
    LLAMA_SIZES,
    {"hidden_act": ("silu",)},
    scalings=(LinearScaling, YarnScaling, Llama3Scaling),
    change=interleaved,
)
MISTRAL = replace(LLAMA, only={**LLAMA.only, "sliding_window": (None,)})
QWEN2 = Architecture("qwen2", LLAMA_SIZES, {"hidden_act": ("silu",), "use_sliding_window": (False,)}, square=True)
QWEN3 = replace(QWEN2, name="qwen3", only={**QWEN2.only, "attention_bias": (False,)}, square=False)
GEMMA2 = Architecture(
    "gemma2",
    GEMMA_SIZES,
    {"hidden_activation": TANH, "attention_bias": (False,), "tie_word_embeddings": (True,)},
    scalings=(),
    more=_gemma2,
    limits=gemma2_obstacles,
)
ALL_EXPERTS = {**QWEN3.only, "mlp_only_layers": ([],)}

ARCHITECTURES: Mapping[str, Architecture] = {
    "GPT2LMHeadModel": Architecture(
        "gpt2",
        {
            "n_positions": "context_length", "n_embd": "embedding_length", "n_layer": "block_count", "vocab_size": "vocab_size",
            "n_inner": "feed_forward_length", "n_head": "attention.head_count",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        {"activation_function": TANH, "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        square=True,
        change=output_first,
    ),
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": replace(
        MISTRAL,
        keys={**LLAMA_SIZES, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    ),
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": replace(
        QWEN3,
        name="qwen3moe",
        keys={**without(LLAMA_SIZES, "intermediate_size"), **EXPERTS},
        only={**ALL_EXPERTS, "norm_topk_prob": (True,)},
        more=_experts,
    ),
    "Qwen2MoeForCausalLM": replace(
        QWEN2,
        name="qwen2moe",
        keys={**without(LLAMA_SIZES, "intermediate_size"), **EXPERTS},
        only={**QWEN2.only, "qkv_bias": (True,), "mlp_only_layers": ([],), "norm_topk_prob": (False,)},
        more=_experts,
    ),
    "Phi3ForCausalLM": replace(
        QWEN2, name="phi3", only={"hidden_act": ("silu",), "sliding_window": (None,)}, scalings=()
    ),
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": replace(
        GEMMA2, name="gemma3", only={**GEMMA2.only, "final_logit_softcapping": (None,)}, scalings=(LinearScaling,), more=_gemma3,
        limits=gemma3_obstacles,
    ),
    "GPTNeoXForCausalLM": Architecture(
        "gptneox",
        {
            **SIZES, "layer_norm_eps": "attention.layer_norm_epsilon", "use_parallel_residual": "use_parallel_residual",
        },
        {"hidden_act": TANH, "attention_bias": (True,)},
        scalings=(LinearScaling,),
        square=True,
        copied=True,
        change=ungrouped,
    ),
    "PhiForCausalLM": Architecture(
        "phi2",
        {**SIZES, "layer_norm_eps": "attention.layer_norm_epsilon"},
        {"hidden_act": TANH, "qk_layernorm": (False,), "tie_word_embeddings": (False,)},
        scalings=(LinearScaling,),
    ),
    "StableLmForCausalLM": Architecture(
        "stablelm",
        {
            **without(LLAMA_SIZES, "rms_norm_eps"), "layer_norm_eps": "attention.layer_norm_epsilon",
            "use_parallel_residual": "use_parallel_residual",
        },
        {"hidden_act": ("silu",)},
        copied=True,
    ),
    "Olmo2ForCausalLM": Architecture(
        "olmo2", LLAMA_SIZES, {"hidden_act": ("silu",), "attention_bias": (False,)}, copied=True
    ),
    "GraniteForCausalLM": replace(
        LLAMA,
        name="granite",
        only={**LLAMA.only, "attention_bias": (False,), "mlp_bias": (False,)},
        more=_granite,
    ),
    "SmolLM3ForCausalLM": replace(
        LLAMA,
        name="smollm3",
        only={**LLAMA.only, "attention_bias": (False,), "mlp_bias": (False,), "use_sliding_window": (False,)},
        scalings=(LinearScaling, YarnScaling),
        limits=smollm3_obstacles,
    ),
    "CohereForCausalLM": Architecture(
        "command-r",
        {**without(LLAMA_SIZES, "rms_norm_eps"), "layer_norm_eps": "attention.layer_norm_epsilon"},
        {"hidden_act": ("silu",), "attention_bias": (False,), "tie_word_embeddings": (True,)},
        scalings=(),
        more=_cohere,
    ),
}  # fmt: skip
