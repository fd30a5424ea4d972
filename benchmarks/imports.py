"""Models of transformers, tiny and random, taken over and given back: their logits, their classes, and the texts they write.

    python benchmarks/imports.py [--count 300] [--seed 0] [--prompts 25] [--only WORD ...] [--json FILE]

First random configs, drawn over what each config class has: built by transformers, saved, imported, and the logits compared; then
exported, loaded by transformers and imported again, and class and logits compared once more. What heddle refuses is counted by its
reason. Then greedy texts of
every decoder-only family in every style of special ids, id by id, beside those of `generate` in transformers, which is told to
suppress the ids that its tokenizer has no text for. `--only` takes families by a part of their class's name.
"""

import argparse
import copy
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Pick = Callable[[Sequence[Any]], Any]
TOLERANCE = 1e-5  # of the largest logit, or
ROUNDING = 8  # times the larger rounding error of both sides, if that is more
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "silu", "swish", "quick_gelu", "relu6",
    "leaky_relu", "mish", "sigmoid", "tanh", "linear",
)  # fmt: skip
SOME_ACTIVATIONS = (*ACTIVATIONS, *ACTIVATIONS, "hardswish")  # the last one heddle does not have


def rotary(pick: Pick, channels: int, **more: Any) -> dict[str, Any]:
    """Rotary positions, slowed in each way that transformers knows."""
    kind = pick(
        (
            "default",
            "default",
            "default",
            "linear",
            "linear",
            "llama3",
            "llama3",
            "yarn",
            "yarn",
            "yarn",
            "dynamic",
            "longrope",
        )
    )
    table: dict[str, Any] = {"rope_type": kind, "rope_theta": pick((10_000.0, 100.0, 500.0)), **more}
    if kind != "default":
        table["factor"] = pick((2.0, 3.0, 8.0))
    if kind in ("llama3", "yarn", "longrope"):
        table["original_max_position_embeddings"] = pick((8, 16))
    if kind == "llama3":
        table |= {"low_freq_factor": 1.0, "high_freq_factor": pick((4.0, 2.0))}
    if kind == "longrope":
        table |= {"short_factor": [1.0] * (channels // 2), "long_factor": [2.0] * (channels // 2)}
    if kind == "yarn":
        fields = {
            "beta_fast": (32.0, 8.0),
            "beta_slow": (1.0, 0.25),
            "attention_factor": (1.5, 1.0),
            "truncate": (True, False),
        }
        table |= {name: pick(values) for name, values in fields.items() if pick((True, False))}
        table |= {"mscale": 1.0, "mscale_all_dim": pick((0.5, 1.0))} if pick((True, False, False)) else {}
    return {"rope_parameters": table}


def llama(pick: Pick, **more: Any) -> dict[str, Any]:
    """What Llama and its relatives share."""
    heads, width = pick((2, 4)), pick((None, 6, 8, 10))
    dim = pick((24, 32, 40))
    return {
        "vocab_size": pick((61, 64, 83)),
        "hidden_size": dim,
        "intermediate_size": pick((40, 36)),
        "num_hidden_layers": pick((1, 2, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": pick([count for count in (1, 2, 4) if heads % count == 0]),
        "head_dim": width,
        "hidden_act": pick(SOME_ACTIVATIONS),
        "max_position_embeddings": pick((24, 48)),
        "initializer_range": pick((0.02, 0.1)),
        "rms_norm_eps": pick((1e-6, 1e-5, 1e-3)),
        "use_cache": pick((True, False)),
        "tie_word_embeddings": pick((False, True)),
        "attention_dropout": pick((0.0, 0.1)),
        **rotary(pick, width or dim // heads),
        **more,
    }


def plain_llama(pick: Pick) -> dict[str, Any]:
    own = {"attention_bias": pick((False, True)), "mlp_bias": pick((False, True)), "pretraining_tp": pick((1, 2))}
    return {**llama(pick), **own}


def mistral(pick: Pick) -> dict[str, Any]:
    return {**llama(pick), "sliding_window": pick((None, 3, 7))}


def mixtral(pick: Pick) -> dict[str, Any]:
    return {
        **mistral(pick),
        "num_local_experts": pick((2, 4)),
        "num_experts_per_tok": pick((1, 2)),
        "router_jitter_noise": pick((0.0, 0.1)),
        **routed(pick),
    }


def routed(pick: Pick) -> dict[str, Any]:
    return {"output_router_logits": pick((False, True)), "router_aux_loss_coef": pick((0.001, 0.1))}


def windows(pick: Pick, layers: int, named: bool = True) -> dict[str, Any]:
    """Layers with a window. Sliding `layer_types` without `use_sliding_window` make transformers itself fail, or see the future."""
    fields = {
        "use_sliding_window": pick((True, False)),
        "sliding_window": pick((3, 5)),
        "max_window_layers": pick((0, 1, 2, 9)),
    }
    if named and pick((True, False)):
        kinds = ("full_attention", "sliding_attention") if fields["use_sliding_window"] else ("full_attention",)
        fields["layer_types"] = [pick(kinds) for _ in range(layers)]
    return fields


def qwen2(pick: Pick) -> dict[str, Any]:
    shared = llama(pick)
    return {**shared, **windows(pick, shared["num_hidden_layers"])}


def qwen3(pick: Pick) -> dict[str, Any]:
    return {**qwen2(pick), "attention_bias": pick((False, True)), "head_dim": 8, **rotary(pick, 8)}


def experts(pick: Pick, layers: int) -> dict[str, Any]:
    return {
        "num_experts": pick((2, 4)),
        "num_experts_per_tok": pick((1, 2)),
        "moe_intermediate_size": pick((16, 12)),
        "decoder_sparse_step": pick((1, 1, 2)),
        "mlp_only_layers": pick(([], [], [0], [layers - 1])),
        "norm_topk_prob": pick((False, True)),
        **routed(pick),
    }


def qwen2_moe(pick: Pick) -> dict[str, Any]:
    shared = qwen2(pick)
    more = experts(pick, shared["num_hidden_layers"])
    more["head_dim"] = shared["head_dim"] or 6  # transformers has no answer to None here
    return {**shared, **more, "shared_expert_intermediate_size": pick((20, 8)), "qkv_bias": pick((True, False))}


def qwen3_moe(pick: Pick) -> dict[str, Any]:
    shared = llama(pick, head_dim=8, **rotary(pick, 8))
    bias = {"attention_bias": pick((False, True))}
    own = windows(pick, shared["num_hidden_layers"], named=False)
    return {**shared, **bias, **own, **experts(pick, shared["num_hidden_layers"])}


def gemma2(pick: Pick) -> dict[str, Any]:
    shared = llama(pick, head_dim=8, **rotary(pick, 8))
    layers = shared["num_hidden_layers"]
    del shared["hidden_act"]
    return {
        **shared,
        "hidden_activation": pick(SOME_ACTIVATIONS),
        "attention_bias": pick((False, True)),
        "query_pre_attn_scalar": pick((8, 12, 256)),
        "sliding_window": pick((3, 5)),
        "layer_types": pick(
            (None, [pick(("full_attention", "sliding_attention")) for _ in range(layers)], ["full_attention"] * layers)
        ),
        "final_logit_softcapping": pick((None, 30.0, 3.0)),
        "attn_logit_softcapping": pick((None, 50.0, 2.0)),
        "use_bidirectional_attention": pick((False, False, False, False, True)),
    }


def gemma3(pick: Pick) -> dict[str, Any]:
    shared = gemma2(pick)
    layers = shared["num_hidden_layers"]
    del shared["rope_parameters"], shared["attn_logit_softcapping"]
    kinds = ("full_attention", "sliding_attention")
    tables = {kind: rotary(pick, 8)["rope_parameters"] for kind in kinds}
    places = pick((None, [pick(kinds) for _ in range(layers)], [kinds[0]] * layers, [kinds[1]] * layers))
    more = {} if places else {"sliding_window_pattern": pick((2, 3))}
    return {**shared, "layer_types": places, "rope_parameters": pick((None, tables)), **more}


def phi3(pick: Pick) -> dict[str, Any]:
    heads, width = pick((2, 4)), pick((6, 8))
    fraction = pick((1.0, 1.0, 0.5, 0.7))
    pairs = (int(width * fraction) + 1) // 2
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": fraction}
    # transformers wants half of an odd number of channels rounded down here, and up in its own angles
    if pick((True, False)) and int(width * fraction) % 2 == 0:
        factors = {"short_factor": [1.0] * pairs, "long_factor": [pick((1.5, 2.0)) for _ in range(pairs)]}
        rope |= {"rope_type": "longrope", **factors} | pick(({}, {"attention_factor": 1.5}, {"factor": 3.0}))
    shared = llama(pick)
    del shared["head_dim"]
    return {
        **shared,
        "hidden_size": heads * width,
        "num_attention_heads": heads,
        "num_key_value_heads": pick((1, 2)),
        "resid_pdrop": pick((0.0, 0.1)),
        "embd_pdrop": pick((0.0, 0.1)),
        # The texts are longer than this, or no text is.
        "original_max_position_embeddings": pick((8, shared["max_position_embeddings"])),
        "sliding_window": pick((None, 5)),
        "rope_parameters": rope,
    }


def opt(pick: Pick) -> dict[str, Any]:
    dim = pick((24, 32))
    return {
        "vocab_size": pick((61, 64)),
        "hidden_size": dim,
        "num_hidden_layers": pick((1, 2, 3)),
        "ffn_dim": pick((40, 52)),
        "max_position_embeddings": pick((24, 48)),
        "do_layer_norm_before": pick((True, False)),
        "_remove_final_layer_norm": pick((False, False, True)),
        "word_embed_proj_dim": pick((None, dim, dim, 12)),
        "dropout": pick((0.0, 0.1)),
        "attention_dropout": pick((0.0, 0.1)),
        "num_attention_heads": pick((2, 4)),
        "activation_function": pick(SOME_ACTIVATIONS),
        "layerdrop": pick((0.0, 0.1)),
        "init_std": pick((0.02, 0.1)),
        "use_cache": pick((True, False)),
        "enable_bias": pick((True, False)),
        "layer_norm_elementwise_affine": pick((True, True, True, False)),
        "tie_word_embeddings": pick((True, False)),
    }


def gpt2(pick: Pick) -> dict[str, Any]:
    return {
        "vocab_size": pick((61, 64)),
        "n_positions": pick((24, 48)),
        "n_embd": pick((24, 32)),
        "n_layer": pick((1, 2, 3)),
        "n_head": pick((1, 2, 4)),
        "n_inner": pick((None, 52)),
        "activation_function": pick(SOME_ACTIVATIONS),
        "resid_pdrop": pick((0.0, 0.1)),
        "embd_pdrop": pick((0.0, 0.1)),
        "attn_pdrop": pick((0.0, 0.1)),
        "layer_norm_epsilon": pick((1e-5, 1e-3)),
        "initializer_range": pick((0.02, 0.1)),
        "summary_type": pick(("cls_index", "mean")),
        "summary_use_proj": pick((True, False)),
        "summary_activation": pick((None, "tanh")),
        "summary_proj_to_labels": pick((True, False)),
        "summary_first_dropout": pick((0.1, 0.0)),
        "scale_attn_weights": pick((True, False)),
        "use_cache": pick((True, False)),
        "scale_attn_by_inverse_layer_idx": pick((False, True)),
        "reorder_and_upcast_attn": pick((False, True)),
        "add_cross_attention": pick((False, False, False, False, True)),
        "tie_word_embeddings": pick((True, False)),
    }


def gpt_neox(pick: Pick) -> dict[str, Any]:
    fraction = pick((0.25, 0.5, 1.0, 0.4))
    return {
        "vocab_size": pick((61, 64)),
        "hidden_size": pick((32, 64)),
        "num_hidden_layers": pick((1, 2, 3)),
        "num_attention_heads": pick((2, 4)),
        "intermediate_size": pick((40, 52)),
        "hidden_act": pick(SOME_ACTIVATIONS),
        "attention_dropout": pick((0.0, 0.1)),
        "hidden_dropout": pick((0.0, 0.1)),
        "classifier_dropout": pick((0.1, 0.0)),
        "max_position_embeddings": pick((24, 48)),
        "initializer_range": pick((0.02, 0.1)),
        "layer_norm_eps": pick((1e-5, 1e-3)),
        "use_cache": pick((True, False)),
        "tie_word_embeddings": pick((False, True)),
        "use_parallel_residual": pick((True, False)),
        "is_decoder": pick((False, False, True)),
        "attention_bias": pick((True, False)),
        **rotary(pick, 8, partial_rotary_factor=fraction),
    }


def falcon(pick: Pick) -> dict[str, Any]:
    heads, new = pick((2, 4)), pick((True, False))
    return {
        "vocab_size": pick((61, 64)),
        "hidden_size": pick((24, 32)),
        "num_hidden_layers": pick((1, 2, 3)),
        "num_attention_heads": heads,
        "num_ln_in_parallel_attn": pick((None, 1, 2) if new else (None, 1)),
        "layer_norm_epsilon": pick((1e-5, 1e-3)),
        "initializer_range": pick((0.02, 0.1)),
        "use_cache": pick((True, False)),
        "hidden_dropout": pick((0.0, 0.1)),
        "attention_dropout": pick((0.0, 0.1)),
        "num_kv_heads": pick([None, *(count for count in (1, 2, 4) if heads % count == 0)]),
        "alibi": pick((False, False, False, False, True)),
        "new_decoder_architecture": new,
        "multi_query": pick((True, False)),
        "parallel_attn": True if new else pick((True, False)),
        "bias": pick((False, True)),
        "max_position_embeddings": pick((24, 48)),
        "ffn_hidden_size": pick((None, 40)),
        "activation": pick(SOME_ACTIVATIONS),
        "tie_word_embeddings": pick((True, False)),
        **rotary(pick, 8),
    }


def bert(pick: Pick) -> dict[str, Any]:
    return {
        "vocab_size": pick((61, 64)),
        "hidden_size": pick((24, 32)),
        "num_hidden_layers": pick((1, 2, 3)),
        "num_attention_heads": pick((2, 4)),
        "intermediate_size": pick((40, 52)),
        "hidden_act": pick(SOME_ACTIVATIONS),
        "hidden_dropout_prob": pick((0.0, 0.1)),
        "attention_probs_dropout_prob": pick((0.0, 0.1)),
        "max_position_embeddings": pick((24, 48)),
        "type_vocab_size": pick((1, 2, 3)),
        "initializer_range": pick((0.02, 0.1)),
        "layer_norm_eps": pick((1e-12, 1e-5, 1e-3)),
        "use_cache": pick((True, False)),
        "classifier_dropout": pick((None, 0.3)),
        "is_decoder": pick((False, False, False, False, False, True)),
        "add_cross_attention": False,  # only together with is_decoder, which is refused
        "tie_word_embeddings": pick((True, False)),
    }


def bert_classifier(pick: Pick) -> dict[str, Any]:
    return {**bert(pick), "num_labels": pick((1, 2, 5)), "problem_type": pick((None, "regression"))}


def gptj(pick: Pick) -> dict[str, Any]:
    names = {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}
    names |= {f"summary_{each}" for each in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")}
    shared = {name: value for name, value in gpt2(pick).items() if name not in names}
    return {**shared, "n_head": pick((2, 4)), "rotary_dim": pick((2, 4, 6))}


def few(pick: Pick, *without: str, **more: Any) -> dict[str, Any]:
    """What Llama and its relatives share, without some of it, and with heads as wide as the model allows."""
    fields = {**llama(pick), **rotary(pick, 8), "hidden_size": pick((32, 64)), **more}
    return {name: value for name, value in fields.items() if name not in ("head_dim", *without)}


def phi(pick: Pick) -> dict[str, Any]:
    own = {"resid_pdrop": pick((0.0, 0.1)), "embd_pdrop": pick((0.0, 0.1)), "qk_layernorm": pick((False, True))}
    turned = rotary(pick, 4, partial_rotary_factor=0.5)
    return few(pick, "rms_norm_eps", layer_norm_eps=pick((1e-5, 1e-3)), **own, **turned)


def stablelm(pick: Pick) -> dict[str, Any]:
    own = {
        "layer_norm_eps": pick((1e-5, 1e-3)),
        "use_qkv_bias": pick((True, False)),
        "qk_layernorm": pick((False, False, False, True)),
        "use_parallel_residual": pick((True, False)),
        "hidden_dropout": pick((0.0, 0.1)),
    }
    return few(pick, "rms_norm_eps", **own, **rotary(pick, 4, partial_rotary_factor=0.5))


def olmo2(pick: Pick) -> dict[str, Any]:
    return few(pick, attention_bias=pick((False, True)))


def smollm3(pick: Pick) -> dict[str, Any]:
    own = {
        "use_sliding_window": pick((False, True)),
        "sliding_window": pick((None, 5)),
        "no_rope_layers": pick((None, [1, 0, 1], [0, 1, 0])),
        "no_rope_layer_interval": pick((2, 4)),
        "layer_types": None,
        "attention_bias": pick((False, True)),
        "mlp_bias": pick((False, True)),
    }
    return few(pick, num_hidden_layers=3, **own)


def granite(pick: Pick) -> dict[str, Any]:
    names = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    factors = {name: pick((1.0, 0.3, 7.0)) for name in names}
    return few(pick, attention_bias=pick((False, True)), mlp_bias=pick((False, True)), **factors)


def cohere(pick: Pick) -> dict[str, Any]:
    own = {
        "layer_norm_eps": pick((1e-5, 1e-3)),
        "logit_scale": pick((0.0625, 1.0)),
        "attention_bias": pick((True, False)),
    }
    return few(pick, "rms_norm_eps", use_qk_norm=pick((False, False, False, True)), **own)


def gpt_oss(pick: Pick) -> dict[str, Any]:
    layers = pick((1, 2, 3))
    own = {
        "hidden_act": pick(("silu", "silu", "silu", "gelu")),
        "sliding_window": pick((3, 5)),
        "layer_types": pick((None, [pick(("full_attention", "sliding_attention")) for _ in range(layers)])),
        "num_local_experts": pick((2, 4)),
        "num_experts_per_tok": pick((1, 2)),
        "swiglu_limit": pick((7.0, 0.5)),
        "swiglu_alpha": pick((1.702, 1.702, 1.702, 1.0)),
        "attention_bias": pick((False, True)),
    }
    fields = llama(pick, **own, **routed(pick))
    rope_fields = fields.pop("rope_parameters")
    rope = {} if pick((True, False, False, False)) else {"rope_parameters": rope_fields}
    return {**fields, "num_hidden_layers": layers, "head_dim": fields["head_dim"] or 8, **rope}


def deepseek(pick: Pick, **more: Any) -> dict[str, Any]:
    heads = pick((2, 4))
    names = ("head_dim", "num_attention_heads", "num_key_value_heads")
    shared = {name: value for name, value in llama(pick).items() if name not in names}
    turned = rotary(pick, 4)
    if turned["rope_parameters"]["rope_type"] != "yarn":
        turned = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    return {
        **shared,
        **turned,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "n_routed_experts": 4,
        "n_shared_experts": pick((1, 2)),
        "num_experts_per_tok": pick((1, 2)),
        "moe_intermediate_size": pick((16, 12)),
        "first_k_dense_replace": pick((0, 1, 3)),
        "kv_lora_rank": pick((10, 6)),
        "q_lora_rank": pick((None, 12)),
        "qk_nope_head_dim": pick((6, 8)),
        "qk_rope_head_dim": 4,
        "v_head_dim": pick((5, 8)),
        "routed_scaling_factor": pick((1.0, 2.5)),
        "attention_bias": pick((False, True)),
        "pretraining_tp": 1,
        "output_router_logits": False,
        **more,
    }


def deepseek_v2(pick: Pick) -> dict[str, Any]:
    method = pick(("greedy", "group_limited_greedy"))
    own = {"mlp_bias": pick((False, False, True)), "norm_topk_prob": False, "topk_method": method, "head_dim": None}
    return deepseek(pick, n_group=2, topk_group=pick((1, 2)), **own)


def deepseek_v3(pick: Pick) -> dict[str, Any]:
    own = {"rope_interleave": pick((True, False)), "norm_topk_prob": pick((True, False)), "num_mtp_layers": 0}
    return deepseek(pick, n_group=pick((1, 2)), topk_group=1, **own)


def padded(draws: Callable[[Pick], dict[str, Any]], *without: str) -> Callable[[Pick], dict[str, Any]]:
    """The fields of a RoBERTa: positions start after the padding id."""

    def fields(pick: Pick) -> dict[str, Any]:
        chosen = {**draws(pick), "pad_token_id": 1, "max_position_embeddings": pick((26, 50))}
        return {name: value for name, value in chosen.items() if name not in without}

    return fields


def electra(draws: Callable[[Pick], dict[str, Any]]) -> Callable[[Pick], dict[str, Any]]:
    return lambda pick: {
        **draws(pick),
        "embedding_size": pick((24, 32, 12)),
        "summary_type": pick(("first", "mean")),
        "summary_use_proj": pick((True, False)),
        "summary_activation": pick(("gelu", "relu")),
        "summary_last_dropout": pick((0.1, 0.0)),
    }


def distilbert(pick: Pick) -> dict[str, Any]:
    return {
        "vocab_size": pick((61, 64)),
        "max_position_embeddings": pick((24, 48)),
        "sinusoidal_pos_embds": pick((False, True)),
        "n_layers": pick((1, 2, 3)),
        "n_heads": pick((2, 4)),
        "dim": pick((24, 32)),
        "hidden_dim": pick((40, 52)),
        "dropout": pick((0.0, 0.1)),
        "attention_dropout": pick((0.0, 0.1)),
        "activation": pick(SOME_ACTIVATIONS),
        "initializer_range": pick((0.02, 0.1)),
        "qa_dropout": pick((0.1, 0.0)),
        "seq_classif_dropout": pick((0.2, 0.0)),
        "tie_word_embeddings": pick((True, False)),
    }


def distilbert_classifier(pick: Pick) -> dict[str, Any]:
    return {**distilbert(pick), "num_labels": pick((1, 2, 5))}


MPNET = ("type_vocab_size", "classifier_dropout", "is_decoder", "add_cross_attention", "use_cache")


def mpnet(draws: Callable[[Pick], dict[str, Any]]) -> Callable[[Pick], dict[str, Any]]:
    fields = padded(draws, *MPNET)
    return lambda pick: {**fields(pick), "relative_attention_num_buckets": pick((32, 32, 32, 40))}


def t5(pick: Pick) -> dict[str, Any]:
    return {
        "vocab_size": pick((61, 64)),
        "d_model": pick((24, 32)),
        "d_kv": pick((6, 8)),
        "d_ff": pick((40, 52)),
        "num_layers": pick((1, 2, 3)),
        "num_decoder_layers": pick((None, 1, 2)),
        "num_heads": pick((2, 4)),
        "relative_attention_num_buckets": pick((8, 32)),
        "relative_attention_max_distance": pick((12, 128)),
        "dropout_rate": pick((0.0, 0.1)),
        "layer_norm_epsilon": pick((1e-6, 1e-3)),
        "initializer_factor": pick((1.0, 0.5)),
        "feed_forward_proj": pick(("relu", "gated-gelu", "gated-silu", "gelu", "gelu_new", "gated-relu", "gated-tanh")),
        "use_cache": pick((True, False)),
        "classifier_dropout": pick((0.0, 0.1)),
        "tie_word_embeddings": pick((True, False)),
        "scale_decoder_outputs": pick((True, False)),
        "is_decoder": pick((False, False, True)),
    }


def umt5(pick: Pick) -> dict[str, Any]:
    own = {"tie_word_embeddings": True, "decoder_start_token_id": pick((None, 0))}
    return {**without(t5(pick), "scale_decoder_outputs"), **own}


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def modernbert(pick: Pick) -> dict[str, Any]:
    layers, heads = pick((1, 2, 3, 4)), pick((2, 4))
    kinds = ("full_attention", "sliding_attention")
    places = pick((None, [pick(kinds) for _ in range(layers)]))
    tables = {kind: rotary(pick, 8)["rope_parameters"] for kind in kinds}
    head_bias = pick((False, True))
    return {
        "vocab_size": pick((61, 64)),
        "hidden_size": 8 * heads,
        "intermediate_size": pick((40, 36)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_activation": pick(SOME_ACTIVATIONS),
        "max_position_embeddings": pick((24, 48)),
        "initializer_range": pick((0.02, 0.1)),
        "initializer_cutoff_factor": pick((2.0, 3.0)),
        "norm_eps": pick((1e-5, 1e-3)),
        "norm_bias": head_bias,
        "attention_bias": pick((False, True)),
        "attention_dropout": pick((0.0, 0.0, 0.0, 0.1)),
        "layer_types": places,
        "rope_parameters": pick((None, tables)),
        "local_attention": pick((4, 7, 128)),
        "embedding_dropout": pick((0.0, 0.1)),
        "mlp_bias": pick((False, True)),
        "mlp_dropout": pick((0.0, 0.1)),
        "decoder_bias": pick((True, False)),
        "classifier_pooling": pick(("cls", "mean")),
        "classifier_dropout": pick((0.0, 0.1)),
        "classifier_bias": pick((head_bias, head_bias, head_bias, not head_bias)),
        "classifier_activation": pick(SOME_ACTIVATIONS),
        "deterministic_flash_attn": pick((False, True)),
        "sparse_prediction": pick((False, True)),
        "sparse_pred_ignore_index": pick((-100, -1)),
        "tie_word_embeddings": pick((True, False)),
        "cls_token_id": None,
        "sep_token_id": None,
        **({} if places else {"global_attn_every_n_layers": pick((2, 3))}),
    }


def bart(pick: Pick) -> dict[str, Any]:
    return {
        "vocab_size": pick((61, 64)),
        "max_position_embeddings": pick((24, 48)),
        "encoder_layers": pick((1, 2, 3)),
        "encoder_ffn_dim": pick((40, 52)),
        "encoder_attention_heads": pick((2, 4)),
        "decoder_layers": pick((1, 2, 3)),
        "decoder_ffn_dim": pick((36, 40)),
        "decoder_attention_heads": pick((2, 4)),
        "encoder_layerdrop": pick((0.0, 0.1)),
        "decoder_layerdrop": pick((0.0, 0.1)),
        "activation_function": pick(SOME_ACTIVATIONS),
        "d_model": pick((24, 32)),
        "dropout": pick((0.0, 0.1)),
        "attention_dropout": pick((0.0, 0.1)),
        "activation_dropout": pick((0.0, 0.1)),
        "init_std": pick((0.02, 0.1)),
        "classifier_dropout": pick((0.0, 0.1)),
        "scale_embedding": pick((False, True)),
        "is_decoder": pick((False, False, True)),
        "use_cache": pick((True, False)),
        "tie_word_embeddings": pick((True, False)),
        "decoder_start_token_id": pick((None, 3)),
        "forced_eos_token_id": pick((None, 2)),
    }


def marian(pick: Pick) -> dict[str, Any]:
    fields = bart(pick)
    del fields["classifier_dropout"]
    two = pick((False, True))
    other = pick((None, 50)) if two else None
    more = {"share_encoder_decoder_embeddings": not two, "decoder_vocab_size": other, "decoder_start_token_id": 0}
    return {**fields, **more}


# What is drawn of each class.
DRAWS: dict[str, Callable[[Pick], dict[str, Any]]] = {
    "GPT2LMHeadModel": gpt2,
    "LlamaForCausalLM": plain_llama,
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Phi3ForCausalLM": phi3,
    "OPTForCausalLM": opt,
    "GPTNeoXForCausalLM": gpt_neox,
    "FalconForCausalLM": falcon,
    "GPTJForCausalLM": gptj,
    "PhiForCausalLM": phi,
    "StableLmForCausalLM": stablelm,
    "Olmo2ForCausalLM": olmo2,
    "SmolLM3ForCausalLM": smollm3,
    "GraniteForCausalLM": granite,
    "CohereForCausalLM": cohere,
    "GptOssForCausalLM": gpt_oss,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "BertForMaskedLM": bert,
    "BertModel": bert,
    "BertForSequenceClassification": bert_classifier,
    "BertForTokenClassification": bert_classifier,
    **{
        name + ending: draws
        for name, masked, classes in (
            ("Roberta", padded(bert), padded(bert_classifier)),
            ("XLMRoberta", padded(bert), padded(bert_classifier)),
            ("DistilBert", distilbert, distilbert_classifier),
            ("Electra", electra(bert), electra(bert_classifier)),
            ("MPNet", mpnet(bert), mpnet(bert_classifier)),
        )
        for ending, draws in (
            ("ForMaskedLM", masked),
            ("ForSequenceClassification", classes),
            ("ForTokenClassification", classes),
            ("Model", masked),
        )
    },
    "ModernBertForMaskedLM": modernbert,
    "T5ForConditionalGeneration": t5,
    "UMT5ForConditionalGeneration": umt5,
    "BartForConditionalGeneration": bart,
    "MarianMTModel": marian,
}
# Fields of config classes that are not drawn: what the class itself is, special ids (they have a part of their own), how answers
# are handed over, and second names of what is drawn.
NOT_DRAWN = {
    "transformers_version", "architectures", "output_hidden_states", "output_attentions", "return_dict", "dtype",
    "model_type", "id2label", "label2id", "problem_type", "is_encoder_decoder", "bos_token_id", "eos_token_id", "pad_token_id",
    "_name_or_path", "num_local_experts", "dense_act_fn", "is_gated_act", "attn_logit_softcapping",
    "_sliding_window_pattern", "num_nextn_predict_layers", "qk_head_dim", "num_experts", "head_dim",
}  # fmt: skip


def drawn(architecture: str, seed: int) -> dict[str, Any]:
    """The fields of a config: the class's own, and one that all classes have and that must change nothing."""
    pick = random.Random(f"{architecture} {seed}").choice
    return {"chunk_size_feed_forward": pick((0, 0, 4)), **DRAWS[architecture](pick)}


def undrawn(architecture: str) -> list[str]:
    """Fields of a config class that nothing is drawn for."""
    import transformers

    fields = getattr(transformers, architecture).config_class().to_dict()
    known = set().union(*(drawn(architecture, seed) for seed in range(20)))
    return sorted(fields.keys() - known - NOT_DRAWN)


def published(architecture: str, fields: dict[str, Any], seed: int, scale: float = 0.3) -> Any:
    """A model of transformers in which no parameter has a special value: biases and norms are random too."""
    import torch
    import transformers

    family = getattr(transformers, architecture)
    torch.manual_seed(seed)
    model = family(family.config_class(attn_implementation=attention(fields), **{**NO_IDS, **fields}))
    draw = torch.Generator().manual_seed(seed)
    behind = architecture.startswith(
        ("Bert", "Bart", "Marian", "Roberta", "XLMRoberta", "DistilBert", "Electra", "MPNet")
    )  # norms behind the sums: gains near 0 would hide everything
    with torch.no_grad():
        learned = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        learned |= {name: tensor for name, tensor in model.named_buffers() if name == "final_logits_bias"}
        for name, tensor in learned.items():
            tensor.normal_(0.0, 0.15 if behind else scale, generator=draw)
            tensor += 1.0 if behind and "norm" in name.lower() and name.endswith("weight") else 0.0
    return model.eval()


def attention(fields: dict[str, Any]) -> str:
    """Eager attention has caps; that of Falcon adds slopes twice, and the fused one once."""
    return "sdpa" if fields.get("alibi") else "eager"


def answer_of_theirs(model: Any, tokens: Any, source: Any) -> Any:
    if model.config.is_encoder_decoder:
        return model(source, decoder_input_ids=tokens).logits
    answer = model(tokens)
    return next(answer[name] for name in ("logits", "pooler_output", "last_hidden_state") if name in answer)


def answer_of_ours(model: Any, tokens: Any, source: Any) -> Any:

    hidden = model(tokens, source=source if len(model.config.stacks()) == 2 else None).hidden
    if model.head is None:
        return hidden
    return (
        model.logits(hidden)
        if model.config.head.kind == "language"
        else model.head(hidden, None, model.embedding.weight)
    )


def off(actual: Any, expected: Any) -> float:
    """The largest difference over the largest entry; infinite where something is no number."""
    difference = float((actual - expected).abs().max() / expected.abs().max())
    return difference if difference == difference else float("inf")


def apart(ours: Any, reference: Any, inputs: tuple[Any, Any]) -> tuple[float, float]:
    """How far two models are apart, and what rounding explains: measured in fp64 where they are more than `TOLERANCE` apart."""
    rough = answer_of_ours(ours, *inputs), answer_of_theirs(reference, *inputs)
    difference = off(*rough)
    if difference <= TOLERANCE:
        return difference, TOLERANCE
    fine = (
        answer_of_ours(copy.deepcopy(ours).double(), *inputs),
        answer_of_theirs(copy.deepcopy(reference).double(), *inputs),
    )
    return difference, max(TOLERANCE, ROUNDING * max(off(*pair) for pair in zip(rough, fine, strict=True)))


@dataclass
class Outcome:
    """What came of one config.

    `came` is `equal`, `refused` by import, `disagrees`, `traceback`, `not exported`, `other class`, `export disagrees`, `not read
    back`; or `not theirs`, where transformers itself cannot build or run it.
    """

    architecture: str
    seed: int
    came: str
    reason: str = ""
    difference: float = 0.0
    exported: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)


def trial(architecture: str, seed: int, folder: Path) -> Outcome:
    """Draw a config, take it over, compare, give it back, compare again."""
    import torch
    import transformers

    from heddle.convert import export_model, import_model
    from heddle.errors import HeddleError
    from heddle.weights import load

    fields = drawn(architecture, seed)
    outcome = Outcome(architecture, seed, "equal", fields=fields)
    draw = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        try:
            reference = published(architecture, fields, seed)
            count = min(fields["vocab_size"], fields.get("decoder_vocab_size") or fields["vocab_size"])
            # Without the id that pads the rows of a RoBERTa, whose positions do not count it.
            tokens, source = 2 + torch.randint(count - 2, (2, 2, 20), generator=draw)
            answer_of_theirs(reference, tokens, source)
            reference.save_pretrained(folder / "published")
        except Exception as error:
            outcome.came, outcome.reason = "not theirs", f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
            return outcome
        try:
            import_model(folder / "published", folder / "run")
        except HeddleError as error:
            outcome.came, outcome.reason = "refused", reason(error, folder)
            return outcome
        except Exception:
            outcome.came, outcome.reason = "traceback", traceback.format_exc()
            return outcome
        try:
            model = load(folder / "run", "cpu").model
            outcome.difference, allowed = apart(model, reference, (tokens, source))
            if not outcome.difference <= allowed:
                outcome.came = "disagrees"
                return outcome
            export_model(folder / "run", folder / "out")
            exported_class = json.loads((folder / "out" / "config.json").read_text())["architectures"][0]
            again = (
                getattr(transformers, exported_class)
                .from_pretrained(folder / "out", attn_implementation=attention(fields))
                .eval()
            )
            outcome.exported, within = apart(model, again, (tokens, source))
            import_model(folder / "out", folder / "back")
            back, _ = apart(load(folder / "back", "cpu").model, reference, (tokens, source))
        except HeddleError as error:
            outcome.came, outcome.reason = "not exported", reason(error, folder)
        except Exception:
            outcome.came, outcome.reason = "traceback", traceback.format_exc()
        else:
            if exported_class != architecture:
                outcome.came, outcome.reason = "other class", exported_class
            elif not outcome.exported <= within:
                outcome.came = "export disagrees"
            elif not back <= allowed:
                outcome.came = "not read back"
    return outcome


def reason(error: Exception, folder: Path) -> str:
    """A refusal without where it was and what is only there for this config."""
    text = str(error).replace(f"{folder / 'published'}: ", "").replace(f"{folder / 'run'}: ", "")
    return re.sub(r" in config\.json: .*?; ", ": ", text).split(": heddle supports")[0][:160]


def configs(count: int, seed: int, names: Sequence[str]) -> list[Outcome]:
    """`count` trials, the classes in turn; what transformers itself cannot do is drawn again and not counted."""
    outcomes: list[Outcome] = []
    number = 0
    while sum(outcome.came != "not theirs" for outcome in outcomes) < count:
        architecture = names[number % len(names)]
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(trial(architecture, seed * 1_000_000 + number, Path(folder)))
        number += 1
        if len(outcomes) % 20 == 0:
            print(f"{len(outcomes)} configs", file=sys.stderr)
    return outcomes


@dataclass(frozen=True)
class Style:
    """How a family of models says which ids are special.

    Attributes:
        special: tokens after the 256 bytes.
        config: ids in config.json, as places in `special`.
        generation: what generation_config.json says otherwise.
        begins: whether the tokenizer's post-processor puts the first id before a text.
        ends: places whose rows are made likely, so that they are drawn.
    """

    special: tuple[str, ...]
    config: dict[str, Any]
    generation: dict[str, Any] = field(default_factory=dict)
    begins: int | None = None
    ends: tuple[int, ...] = (0,)


STYLES = {
    "none": Style(("<|endoftext|>",), {}),
    "GPT-2": Style(("<|endoftext|>",), {"bos_token_id": 0, "eos_token_id": 0}),
    "Llama 2": Style(("<unk>", "<s>", "</s>"), {"bos_token_id": 1, "eos_token_id": 2}, begins=1, ends=(2,)),
    "Llama 3": Style(
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        {"bos_token_id": 0, "eos_token_id": [1, 2, 3]},
        begins=0,
        ends=(2, 3),
    ),
    "Qwen3": Style(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        {"bos_token_id": 0, "eos_token_id": 2},
        {"eos_token_id": [2, 0], "pad_token_id": 0},
        ends=(0, 2),
    ),
    "Gemma": Style(
        ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
        {"eos_token_id": [1, 4]},
        begins=2,
        ends=(1, 4),
    ),
}
PADDING = 40  # ids of the model that no tokenizer has
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 96,
}  # fmt: skip
GROUPED = {**SHAPE, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
LATENT = {
    **SHAPE, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "kv_lora_rank": 10, "q_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}  # fmt: skip
WRITERS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
    "LlamaForCausalLM": GROUPED,
    "MistralForCausalLM": {**GROUPED, "sliding_window": 5},
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": {**GROUPED, "head_dim": 8},
    "Qwen2MoeForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 20},
    "Qwen3MoeForCausalLM": EXPERTS,
    "Gemma2ForCausalLM": {**GROUPED, "head_dim": 8, "sliding_window": 5},
    "Gemma3ForCausalLM": {**GROUPED, "head_dim": 8, "sliding_window": 5, "sliding_window_pattern": 2},
    "Phi3ForCausalLM": {**GROUPED, "partial_rotary_factor": 0.5},
    "OPTForCausalLM": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 40,
        "max_position_embeddings": 96,
    },
    "GPTNeoXForCausalLM": SHAPE,
    "GPTJForCausalLM": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96, "rotary_dim": 4},
    "PhiForCausalLM": GROUPED,
    "StableLmForCausalLM": {**GROUPED, "use_parallel_residual": True},
    "Olmo2ForCausalLM": GROUPED,
    "SmolLM3ForCausalLM": {**GROUPED, "no_rope_layers": [1, 0]},
    "GraniteForCausalLM": {**GROUPED, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    "CohereForCausalLM": {**GROUPED, "logit_scale": 0.5},
    "GptOssForCausalLM": {
        **GROUPED,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "DeepseekV2ForCausalLM": LATENT,
    "DeepseekV3ForCausalLM": {**LATENT, "n_group": 2, "topk_group": 1, "num_mtp_layers": 0},
    "FalconForCausalLM": {name: SHAPE[name] for name in SHAPE if name != "intermediate_size"},
}


@dataclass
class Texts:
    """Greedy texts of one family in one style: how many are equal id by id, and what they show."""

    architecture: str
    style: str
    prompts: int
    equal: int
    ended: int  # by an end id
    textless: int  # ids without text that heddle drew
    suppressed: int  # texts in which transformers, not told to suppress them, would have drawn one


def prompts_of(count: int, lengths: Sequence[int] = range(1, 6)) -> list[str]:
    """Short texts of these lengths in turn."""
    draw = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz ABC.,\n"
    return ["".join(draw.choices(letters, k=lengths[number % len(lengths)])) for number in range(count)]


def write_tokenizer(folder: Path, style: Style) -> int:
    """The files of a byte-level tokenizer with the style's special tokens; how many ids it has."""
    from heddle.text import train_tokenizer

    tokenizer = train_tokenizer("bytes", [], special=style.special)
    tokenizer.save(folder)
    steps: list[dict[str, Any]] = [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    ]
    if style.begins is not None:
        token = style.special[style.begins]
        whole = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*whole, {"Sequence": {"id": "B", "type_id": 1}}]
        named = {token: {"id": token, "ids": [tokenizer.special[token]], "tokens": [token]}}
        steps.append({"type": "TemplateProcessing", "single": whole, "pair": pair, "special_tokens": named})
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "processors": steps}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return tokenizer.vocab_size


def make_writer(architecture: str, style: Style, count: int, prompts: list[list[int]]) -> Any:
    """A model in which ids that end a text, and one without text, are likely in the middle of texts."""
    import torch

    def placed(data: dict[str, Any]) -> dict[str, Any]:
        return {name: [256 + i for i in at] if isinstance(at, list) else 256 + at for name, at in data.items()}

    fields = {**WRITERS[architecture], "vocab_size": count + PADDING, **NO_IDS, **placed(style.config)}
    model = published(architecture, fields, seed=3, scale=0.4)
    for name, value in placed(style.generation).items():
        setattr(model.generation_config, name, value)
    # What is drawn late in texts and not before is where they may end.
    free = [text for text, _ in written(model, prompts, 16, min_new_tokens=16)]
    late = Counter(token for text in free for token in set(text[3:]) - set(text[:3]))
    every = Counter(token for text in free for token in text)
    popular = [token for token, _ in (*late.most_common(), *every.most_common()) if token < 256]
    head = model.get_output_embeddings()
    with torch.no_grad():
        for place, end in enumerate((*(256 + each for each in style.ends), count + 7)):
            for tensor in (head.weight, head.bias) if head.bias is not None else (head.weight,):
                tensor[end] = 1.02 * tensor[popular[place % len(popular)]]
    return model


def written(model: Any, prompts: list[list[int]], length: int, **settings: Any) -> list[tuple[list[int], list[int]]]:
    """Greedy texts of transformers, those of equally long prompts together, each with the likeliest id at each place, which the
    settings may suppress.
    """
    import torch

    texts: dict[int, tuple[list[int], list[int]]] = {}
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, **settings}
    for width in sorted({len(prompt) for prompt in prompts}):
        rows = [number for number, prompt in enumerate(prompts) if len(prompt) == width]
        ids = torch.tensor([prompts[row] for row in rows])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **settings)
        likeliest = torch.stack(out.logits, 1).argmax(-1)
        texts |= dict(zip(rows, zip(out.sequences[:, width:].tolist(), likeliest.tolist(), strict=True), strict=True))
    return [texts[row] for row in range(len(prompts))]


def compare_texts(
    architecture: str, name: str, count: int, folder: Path, length: int = 24, lengths: Sequence[int] = range(1, 6)
) -> Texts:
    """Import a writer and compare what it writes after prompts of these lengths."""
    from transformers import PreTrainedTokenizerFast

    from heddle.config import SamplingConfig
    from heddle.convert import import_model
    from heddle.generate.text import text_engine
    from heddle.weights import load

    style = STYLES[name]
    (folder / "published").mkdir(parents=True)
    known = write_tokenizer(folder / "published", style)
    reference = PreTrainedTokenizerFast.from_pretrained(folder / "published")
    prompts = prompts_of(count, lengths)
    ids = [reference(prompt)["input_ids"] for prompt in prompts]
    model = make_writer(architecture, style, known, ids)
    model.save_pretrained(folder / "published")
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    filler = {} if model.generation_config.pad_token_id is not None or not ends else {"pad_token_id": ends[0]}
    textless = [id for id in range(known, known + PADDING) if id not in ends]
    answers = written(model, ids, length, suppress_tokens=textless, **filler)
    expected = [until(text, ends) for text, _ in answers]
    likeliest = [choices[: len(text)] for text, (_, choices) in zip(expected, answers, strict=True)]

    import_model(folder / "published", folder / "run")
    loaded, tokenizer = load(folder / "run", "cpu")
    assert tokenizer is not None
    engine = text_engine(loaded, tokenizer, prompts, SamplingConfig(temperature=0.0, max_tokens=length))
    texts: list[list[int]] = [[] for _ in prompts]
    ended = 0
    while engine:
        for event in engine.step():
            texts[event.row].append(event.token)
            ended += event.finish == "end"
    return Texts(
        architecture,
        name,
        count,
        equal=sum(ours == text for ours, text in zip(texts, expected, strict=True)),
        ended=ended,
        textless=sum(token in textless for text in texts for token in text),
        suppressed=sum(any(token in textless for token in choices) for choices in likeliest),
    )


def until(text: list[int], ends: Iterable[int]) -> list[int]:
    """A text up to and with its first end; behind it rows are filled up."""
    place = next((place for place, token in enumerate(text) if token in ends), len(text))
    return text[: place + 1]


def report_configs(outcomes: list[Outcome]) -> None:
    counted = [outcome for outcome in outcomes if outcome.came != "not theirs"]
    came = Counter(outcome.came for outcome in counted)
    agreed = [outcome for outcome in counted if outcome.came in ("equal", "not exported", "other class")]
    print(f"{len(counted)} configs: " + ", ".join(f"{count} {name}" for name, count in came.most_common()))
    print(f"largest difference {max((o.difference for o in agreed), default=0):.1e}", end="")
    print(f", of exports {max((o.exported for o in agreed), default=0):.1e} (of the largest logit)\n")
    print("| class | configs | equal, and exported as the same class | refused |\n|---|---|---|---|")
    for name in DRAWS:
        rows = [outcome.came for outcome in counted if outcome.architecture == name]
        if rows:
            print(f"| {name} | {len(rows)} | {rows.count('equal')} | {rows.count('refused')} |")
    for kind in (
        "refused",
        "not exported",
        "other class",
        "disagrees",
        "export disagrees",
        "not read back",
        "traceback",
        "not theirs",
    ):
        others = [outcome for outcome in outcomes if outcome.came == kind]
        if others:
            print(f"\n{kind}:")
        for text, count in Counter(outcome.reason for outcome in others).most_common():
            first = next(outcome for outcome in others if outcome.reason == text)
            print(f"{count:4} {text} ({first.architecture}, {first.seed})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=25)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = [name for name in DRAWS if not options.only or any(word.lower() in name.lower() for word in options.only)]
    if forgotten := {name: fields for name in names if (fields := undrawn(name))}:
        sys.exit(f"nothing is drawn for {forgotten}")
    start = time.perf_counter()
    outcomes = configs(options.count, options.seed, names) if options.count else []
    if outcomes:
        report_configs(outcomes)
        print(f"\n{time.perf_counter() - start:.0f} s\n")
    start = time.perf_counter()
    texts: list[Texts] = []
    for name in (name for name in WRITERS if name in names and options.prompts):
        for style in STYLES:
            with tempfile.TemporaryDirectory() as folder:
                texts.append(compare_texts(name, style, options.prompts, Path(folder)))
    if texts:
        print(
            "| equal texts (of them ended by an end id) | "
            + " | ".join(STYLES)
            + " |\n"
            + "|---" * (len(STYLES) + 1)
            + "|"
        )
        for name in dict.fromkeys(row.architecture for row in texts):
            cells = [f"{row.equal} of {row.prompts} ({row.ended})" for row in texts if row.architecture == name]
            print(f"| {name} | {' | '.join(cells)} |")
        print(
            f"\nids without text that heddle drew: {sum(row.textless for row in texts)}; texts in which transformers would have"
        )
        print(f"drawn one: {sum(row.suppressed for row in texts)} of {sum(row.prompts for row in texts)}")
        print(f"\n{time.perf_counter() - start:.0f} s")
    if options.json:
        data = {"configs": [vars(each) for each in outcomes], "texts": [vars(each) for each in texts]}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    bad = [each for each in outcomes if each.came not in ("equal", "refused", "not theirs")]
    sys.exit(1 if bad or any(row.equal < row.prompts or row.textless for row in texts) else 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
