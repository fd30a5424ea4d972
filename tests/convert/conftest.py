"""Tiny random models of transformers, and a run made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.utils import logging

from heddle.config import SavedConfig, TransformerConfig, preset, sized
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights.run import write_model
from tests.convert.toys import Toy, Toys
from tests.thorough import thorough

logging.disable_progress_bar()

# No ids of special tokens: the usual ones lie beyond a tiny vocabulary, and transformers would warn.
NO_IDS = {"bos_token_id": None, "eos_token_id": None}
GPT2_TINY = {"vocab_size": 61, "n_positions": 24, "n_embd": 24, "n_layer": 3, "n_head": 3}
LLAMA_TINY = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 24,
}  # fmt: skip

MOE_TINY = {**LLAMA_TINY, "num_key_value_heads": 2, "num_experts_per_tok": 2}

T5_TINY = {
    "vocab_size": 61, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "pad_token_id": None,
}  # fmt: skip
BERT_TINY = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 24, "type_vocab_size": 3, "pad_token_id": None,
}  # fmt: skip

ROBERTA_TINY = {**BERT_TINY, "max_position_embeddings": 26, "pad_token_id": 1}
DISTILBERT_TINY = {
    "vocab_size": 61, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 24,
    "pad_token_id": None,
}  # fmt: skip
ELECTRA_TINY = {**BERT_TINY, "embedding_size": 16}

NEOX_TINY = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 24,
}  # fmt: skip
FALCON_TINY = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 24,
}  # fmt: skip

BART_TINY = {
    "vocab_size": 61, "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 24,
    "pad_token_id": None, "forced_eos_token_id": None,
}  # fmt: skip


def slowed(kind: str, base: float = 100.0, **fields: Any) -> dict[str, Any]:
    """Rotary positions whose angles are slowed; the base is so small that it shows within a few tokens."""
    usual = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}.get(kind, {})
    original = {} if kind in ("linear", "dynamic") else {"original_max_position_embeddings": 8}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, "factor": 3.0, **original, **usual, **fields}}


def long_rope(original: int, **fields: Any) -> dict[str, Any]:
    """A divisor for each of three pairs, for texts of up to `original` tokens and for longer ones."""
    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 4.0, 9.0]}
    table = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": original}
    return {"rope_parameters": {**table, **factors, **fields}}


# Encoders with a class for each head.
ENDINGS = {
    "": "ForMaskedLM", "_model": "Model", "_classifier": "ForSequenceClassification", "_tagged": "ForTokenClassification",
}  # fmt: skip
ENCODERS = ("distilbert", "roberta", "xlm_roberta", "electra", "mpnet")

# The class of transformers and the sizes behind the first word of a variant.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2_TINY),
    "llama": ("LlamaForCausalLM", LLAMA_TINY),
    "qwen2": ("Qwen2ForCausalLM", LLAMA_TINY),
    "qwen3": ("Qwen3ForCausalLM", LLAMA_TINY),
    "mistral": ("MistralForCausalLM", LLAMA_TINY),
    "mixtral": ("MixtralForCausalLM", {**MOE_TINY, "num_local_experts": 4}),
    "t5": ("T5ForConditionalGeneration", T5_TINY),
    "umt5": ("UMT5ForConditionalGeneration", T5_TINY),
    "bert": ("BertForMaskedLM", BERT_TINY),
    "modernbert": (
        "ModernBertForMaskedLM",
        {
            "vocab_size": 61,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 24,
            "local_attention": 6,
            "pad_token_id": None,
        },
    ),
    "bert_pooled": ("BertModel", BERT_TINY),
    "bert_classifier": ("BertForSequenceClassification", BERT_TINY),
    "bert_tagged": ("BertForTokenClassification", BERT_TINY),
    **{
        name + head: (start + end, sizes)
        for name, start, sizes in (
            ("distilbert", "DistilBert", DISTILBERT_TINY),
            ("roberta", "Roberta", ROBERTA_TINY),
            ("xlm_roberta", "XLMRoberta", ROBERTA_TINY),
            ("electra", "Electra", ELECTRA_TINY),
            ("mpnet", "MPNet", {name: size for name, size in ROBERTA_TINY.items() if name != "type_vocab_size"}),
        )
        for head, end in ENDINGS.items()
    },
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA_TINY, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX_TINY),
    "falcon": ("FalconForCausalLM", FALCON_TINY),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA_TINY, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}),
    "phi3": ("Phi3ForCausalLM", {**LLAMA_TINY, "num_key_value_heads": 2, "pad_token_id": None}),
    "opt": (
        "OPTForCausalLM",
        {
            "vocab_size": 61,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "ffn_dim": 40,
            "num_attention_heads": 4,
            "max_position_embeddings": 24,
            "pad_token_id": None,
        },
    ),
    "bart": ("BartForConditionalGeneration", BART_TINY),
    "marian": ("MarianMTModel", {**BART_TINY, "decoder_start_token_id": 0, "eos_token_id": 0}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**MOE_TINY, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**MOE_TINY, "num_experts": 4, "moe_intermediate_size": 16}),
}

DEEPSEEK_TINY = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "moe_intermediate_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 10, "q_lora_rank": 12, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5, "max_position_embeddings": 24,
}  # fmt: skip
KINDS |= {
    "gptj": (
        "GPTJForCausalLM",
        {"vocab_size": 61, "n_positions": 24, "n_embd": 24, "n_layer": 3, "n_head": 3, "rotary_dim": 4, "n_inner": 40},
    ),
    "phi": ("PhiForCausalLM", {**LLAMA_TINY, "hidden_size": 32}),
    "stablelm": ("StableLmForCausalLM", {**LLAMA_TINY, "hidden_size": 32}),
    "olmo2": ("Olmo2ForCausalLM", {**LLAMA_TINY, "pad_token_id": None}),
    "smollm3": ("SmolLM3ForCausalLM", {**LLAMA_TINY, "num_hidden_layers": 4, "pad_token_id": None}),
    "granite": ("GraniteForCausalLM", LLAMA_TINY),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            **LLAMA_TINY,
            "intermediate_size": 20,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "swiglu_limit": 0.5,
            "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "deepseek_v2": ("DeepseekV2ForCausalLM", DEEPSEEK_TINY),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**DEEPSEEK_TINY, "n_group": 2, "topk_group": 1, "num_mtp_layers": 0},
    ),
    "cohere": ("CohereForCausalLM", {**LLAMA_TINY, "pad_token_id": None}),
}

LOCAL_FIRST = ["sliding_attention", "sliding_attention", "full_attention"]

VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-exact-gelu-inner": {"activation_function": "gelu", "n_inner": 52, "layer_norm_epsilon": 1e-3},
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "llama-grouped": {"num_key_value_heads": 2, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    "llama-multi-query-wide-heads": {"num_key_value_heads": 1, "head_dim": 10, "hidden_act": "gelu"},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "qwen3": {"head_dim": 8},
    "qwen3-tied-grouped": {"head_dim": 10, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-grouped-yarn-window": {
        **slowed("yarn"),
        **{"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    },
    "mistral-window": {"sliding_window": 7, "num_key_value_heads": 2},
    "mistral-whole": {"sliding_window": None, "head_dim": 8},
    "mixtral": {},
    "bart": {},
    "bart-scaled": {"scale_embedding": True, "activation_function": "relu", "tie_word_embeddings": True},
    "marian": {"scale_embedding": True, "activation_function": "swish"},
    "qwen2_moe": {},
    "qwen2_moe-renormalised": {"norm_topk_prob": True, "qkv_bias": False},
    "gemma2": {"sliding_window": 5, "query_pre_attn_scalar": 12},
    "gemma2-caps": {
        "sliding_window": 6,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "attention_bias": True,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": False,
    },
    "gemma2-whole": {"layer_types": ["full_attention"] * 3},
    "gemma2-without-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3": {"sliding_window": 5, "query_pre_attn_scalar": 12, "layer_types": LOCAL_FIRST},
    "gemma3-scaled": {
        "sliding_window": 6,
        "attention_bias": True,
        "final_logit_softcapping": 3.0,
        "layer_types": LOCAL_FIRST[::-1],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gemma3-yarns": {
        "sliding_window": 5,
        "layer_types": LOCAL_FIRST,
        "rope_parameters": {
            "full_attention": slowed("yarn", beta_slow=0.25, attention_factor=1.5)["rope_parameters"],
            "sliding_attention": slowed("yarn", base=50.0, beta_fast=8.0)["rope_parameters"],
        },
    },
    "gemma3-by-period": {"sliding_window": 6, "num_hidden_layers": 4, "sliding_window_pattern": 3, "rope_theta": 500.0},
    "gemma3-local": {"sliding_window": 6, "layer_types": ["sliding_attention"] * 3, "tie_word_embeddings": False},
    "phi3": {"rms_norm_eps": 1e-3},
    "phi3-odd-window": {
        "sliding_window": 7,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "partial_rotary_factor": 0.6,
    },
    "phi3-longrope": {**long_rope(8), "original_max_position_embeddings": 8, "max_position_embeddings": 24},
    "opt": {},
    "opt-post": {"do_layer_norm_before": False, "enable_bias": False, "activation_function": "gelu"},
    "opt-without-final": {"_remove_final_layer_norm": True, "tie_word_embeddings": False},
    "gpt_neox": {},
    "gpt_neox-serial": {
        "use_parallel_residual": False,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 1.0},
    },
    "falcon": {},
    "falcon-heads": {"multi_query": False, "bias": True, "tie_word_embeddings": False, "ffn_hidden_size": 40},
    "falcon-serial": {"parallel_attn": False, "bias": True},
    "falcon-rw": {
        **{"parallel_attn": False, "multi_query": False, "bias": True, "alibi": True},
        "attn_implementation": "sdpa",  # the eager one adds the slopes twice
    },
    "falcon-alibi-new": {
        **{"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": True, "attn_implementation": "sdpa"},
    },
    "falcon-new": {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon-new-one-norm": {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    "t5": {},
    "t5-gated": {"feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False},
    "t5-own-head": {"feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False, "own_head": True},
    "umt5": {},
    "umt5-relu": {"feed_forward_proj": "relu", "num_layers": 1},
    "umt5-own-head": {"own_head": True},
    "bert": {},
    "modernbert": {},
    "modernbert-biases": {
        **{"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
        "layer_types": [*LOCAL_FIRST, "sliding_attention"],
        "classifier_activation": "silu",
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
        },
    },
    "modernbert-untied": {"decoder_bias": False, "tie_word_embeddings": False, "global_attn_every_n_layers": 2},
    "bert_classifier": {"num_labels": 5, "classifier_dropout": 0.3},
    "bert_tagged": {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}},
    "bert_pooled": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    **{name + head: {} for name in ENCODERS for head in ENDINGS},
    "distilbert-untied": {"tie_word_embeddings": False, "activation": "relu"},
    "distilbert_classifier-three": {"num_labels": 3, "seq_classif_dropout": 0.4},
    "roberta-other-padding-untied": {"pad_token_id": 0, "type_vocab_size": 1, "tie_word_embeddings": False},
    "electra-as-wide": {"embedding_size": 24, "hidden_act": "relu", "tie_word_embeddings": False},
    "electra_classifier-relu": {"hidden_act": "relu", "classifier_dropout": 0.4},
    "mpnet-eps": {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new"},
    "gptj": {},
    "gptj-tied-whole": {"rotary_dim": 8, "tie_word_embeddings": True, "activation_function": "gelu"},
    "phi": {},
    "phi-normed": {
        **{"qk_layernorm": True, "num_key_value_heads": 2, "tie_word_embeddings": True, "num_hidden_layers": 2},
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.75},
    },
    "stablelm": {"num_key_value_heads": 2},
    "stablelm-parallel": {
        **{"use_parallel_residual": True, "use_qkv_bias": True, "tie_word_embeddings": True, "layer_norm_eps": 1e-3},
        **slowed("yarn", partial_rotary_factor=0.5),
    },
    "olmo2": {"num_key_value_heads": 2},
    "olmo2-biases": {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "smollm3": {"num_key_value_heads": 2},
    "smollm3-windows": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "no_rope_layers": [0, 1, 1, 0],
        "mlp_bias": True,
    },
    "smollm3-all": {"no_rope_layers": [1] * 4, "tie_word_embeddings": False},
    "granite": {
        **{
            "embedding_multiplier": 1.5,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
        },
    },
    "granite-one": {"num_key_value_heads": 2, "tie_word_embeddings": True, "attention_bias": True},
    "gpt_oss": {},
    "gpt_oss-yarn": {
        **slowed("yarn", truncate=False),
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "gpt_oss-without-biases": {"attention_bias": False, "tie_word_embeddings": True, "num_experts_per_tok": 3},
    "deepseek_v2": {},
    "deepseek_v2-groups": {
        **{"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5},
        **{"q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True, "first_k_dense_replace": 0},
        **slowed("yarn", mscale=0.7, mscale_all_dim=0.5),
    },
    "deepseek_v3": {},
    "deepseek_v3-halves": {
        **{
            "norm_topk_prob": False,
            "rope_interleave": False,
            "first_k_dense_replace": 2,
            "n_group": 1,
            "topk_group": 1,
        },
        **slowed("yarn", mscale=1.0, mscale_all_dim=1.0),
    },
    "cohere": {"num_key_value_heads": 2},
    "cohere-biases": {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.3},
    "mixtral-window": {"sliding_window": 5, "num_experts_per_tok": 3},
    "qwen3_moe-as-they-are": {"norm_topk_prob": False, "head_dim": 8},
    "qwen3_moe-renormalised": {"norm_topk_prob": True, "head_dim": 8, "tie_word_embeddings": True},
    "llama-linear": slowed("linear"),
    "llama-llama3": slowed("llama3", original_max_position_embeddings=16),
    "llama-yarn": slowed("yarn"),
    "mistral-yarn": slowed("yarn", mscale=1.0, mscale_all_dim=0.5, truncate=False),
    "mixtral-linear": {**slowed("linear"), "head_dim": 6},
    "qwen3-yarn-window": {
        **slowed("yarn", beta_fast=8.0, beta_slow=0.25, attention_factor=1.5),
        **{"head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    },
    "qwen3_moe-yarn-dense-window": {
        **slowed("yarn"),
        **{"head_dim": 8, "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 7},
    },
    "qwen3_moe-every-second": {**slowed("llama3"), "head_dim": 8, "decoder_sparse_step": 2},
    "qwen2_moe-llama3-dense": {**slowed("llama3"), "mlp_only_layers": [1, 2]},
    "qwen2_moe-window": {**slowed("linear"), "use_sliding_window": True, "sliding_window": 5, "head_dim": 6},
    "gpt_neox-odd": {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.7}},
    "gpt_neox-odd-llama3": slowed("llama3", partial_rotary_factor=0.4),
    "llama-dynamic": slowed("dynamic"),
    "llama-longrope-short": long_rope(24),
    "qwen3-longrope": {**long_rope(8, factor=3.0), "head_dim": 6},
    "gpt_neox-yarn": slowed("yarn", partial_rotary_factor=0.5),
    "gpt_neox-llama3": slowed("llama3", partial_rotary_factor=1.0),
    "falcon-yarn": slowed("yarn"),
    "falcon-llama3": {**slowed("llama3"), "new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma2-yarn": {**slowed("yarn"), "sliding_window": 5},
    "gemma2-linear": {**slowed("linear"), "layer_types": ["sliding_attention"] * 3, "sliding_window": 5},
    "gpt2-unscaled": {"scale_attn_weights": False},
    "gpt2-by-layer": {"scale_attn_by_inverse_layer_idx": True},
    "bert-relu": {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    "bert-gelu-new-untied": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "tie_word_embeddings": False},
    "bart-untied": {"tie_word_embeddings": False},
    "marian-untied": {"tie_word_embeddings": False},
    "marian-two-tables": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 67},
    "marian-two-tables-untied": {
        **{"share_encoder_decoder_embeddings": False, "vocab_size": 70, "decoder_vocab_size": 61},
        "tie_word_embeddings": False,
    },
}


# Classes whose norms are behind the sum, or whose scores a key's bias moves all alike.
BALANCE = "e_score_correction_bias"  # which no gradient moves
POST_NORM = ("Bert", "Bart", "Marian", "DistilBert", "Roberta", "XLMRoberta", "Electra", "MPNet")


def make(variant: str, **changes: Any) -> PreTrainedModel:
    """A model in which no parameter has a special value: biases and norms are random too."""
    fields = {**NO_IDS, **VARIANTS[variant], **changes}
    own_head = fields.pop("own_head", False)
    name, sizes = KINDS[variant.split("-")[0]]
    family = getattr(transformers, name)
    # The fused attention of transformers has no cap.
    model: PreTrainedModel = family(family.config_class(**{"attn_implementation": "eager", **sizes, **fields}))
    if own_head:  # which no setting of a T5 says; transformers reads it from a file that holds two tensors
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    generator = torch.Generator().manual_seed(5)
    # Norms behind the sum: gains far below 1 would shrink all gradients before them, and steep attention those of queries and
    # keys, until they are rounding and nothing else.
    behind = name.startswith(POST_NORM)
    with torch.no_grad():
        for name, tensor in trained(model).items():
            tensor.normal_(0.0, 0.15 if behind else 0.3, generator=generator)
            tensor *= (
                0.2 if "pooler" in name or "classifier.dense" in name else 1.0
            )  # where tanh is flat its gradient is rounding, too
            tensor += 1.0 if behind and "norm" in name.lower() and name.endswith("weight") else 0.0
            tensor.requires_grad_()
        for name, tensor in model.named_buffers():
            if name.endswith(BALANCE):
                tensor.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def trained(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What is learned: all parameters but sines and cosines, and the one bias that transformers keeps as a buffer."""
    learned = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    return learned | {name: tensor for name, tensor in model.named_buffers() if name == "final_logits_bias"}


@pytest.fixture
def make_published() -> Callable[..., PreTrainedModel]:
    return make


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    return Toys(tmp_path_factory.mktemp("toys"), make)


# Of each family, the first variant; the others have its tables with changes.
FIRST = {
    next(name for name in VARIANTS if name.split("-")[0] == kind) for kind in {name.split("-")[0] for name in VARIANTS}
}


# Tests of one toy stand together, so that one worker makes it.
@pytest.fixture(params=[*sorted(FIRST), *thorough(*sorted(VARIANTS.keys() - FIRST))], scope="module")
def toy(request: pytest.FixtureRequest, toys: Toys) -> Toy:
    return toys(request.param)


def first_variant(kind: str) -> str:
    """The variant that stands for its family."""
    return next(variant for variant in VARIANTS if variant.split("-")[0] == kind)


@pytest.fixture(params=sorted(KINDS), scope="module")
def one_of_each(request: pytest.FixtureRequest, toys: Toys) -> Toy:
    """One model per family."""
    return toys(first_variant(request.param))


def shrunk(name: str, **changes: Any) -> TransformerConfig:
    """A preset at a size that builds at once: each width a small one, each stack of two layers, or of three in an encoder."""
    config = preset(name)
    sizes: dict[str, Any] = {"vocab_size": 61, "dim": 24, "context": 20}
    for stack, part in config.stacks().items():
        sizes[f"{stack}.depth"] = 3 if stack == "encoder" else 2
        for place in ("mixer", "cross"):
            attention: Any = getattr(part.block, place)
            if attention is not None and attention.kind == "attention":
                heads = {"heads": 4, "kv_heads": None if attention.kv_heads is None else 2, "head_dim": 6}
                sizes |= {f"{stack}.block.{place}.{key}": value for key, value in heads.items()}
        if part.block.ffn.kind in ("mlp", "gated"):
            sizes[f"{stack}.block.ffn.hidden"] = 40
        if part.block.ffn.kind == "moe":
            sizes |= {f"{stack}.block.ffn.experts": 4, f"{stack}.block.ffn.active": 2}
            sizes[f"{stack}.block.ffn.expert.hidden"] = 16
    return config.override({**sizes, **changes})


@pytest.fixture
def tiny() -> TransformerConfig:
    """What heddle makes by default, only small."""
    return sized(2, vocab_size=257, context=16, dim=16)


@pytest.fixture
def run(tmp_path: Path, tiny: TransformerConfig) -> Path:
    """A complete run of step 10, with a tokenizer of bytes."""
    path = tmp_path / "run"
    path.mkdir()
    write_model(path, build(tiny, seed=1).state_dict(), SavedConfig(model=tiny), train_tokenizer("bytes", []), step=10)
    return path
