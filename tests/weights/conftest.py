"""Tiny random models of transformers, and a run made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from heddle.config import SavedConfig, TransformerConfig, sized
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights.run import write_model

logging.disable_progress_bar()

# No ids of special tokens: the usual ones lie beyond a tiny vocabulary, and transformers would warn.
NO_IDS = {"bos_token_id": None, "eos_token_id": None}
GPT2_TINY = {"vocab_size": 61, "n_positions": 24, "n_embd": 24, "n_layer": 3, "n_head": 3}
LLAMA_TINY = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 24,
}  # fmt: skip

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
}


def make(variant: str, **changes: Any) -> PreTrainedModel:
    """A model in which no parameter has a special value: biases and norms are random too."""
    fields = {**NO_IDS, **VARIANTS[variant], **changes}
    model: PreTrainedModel
    if variant.startswith("gpt2"):
        model = GPT2LMHeadModel(GPT2Config(**{**GPT2_TINY, **fields}))
    elif variant.startswith("qwen3"):
        model = Qwen3ForCausalLM(Qwen3Config(**{**LLAMA_TINY, **fields}))
    else:
        model = LlamaForCausalLM(LlamaConfig(**{**LLAMA_TINY, **fields}))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


@pytest.fixture
def make_published() -> Callable[..., PreTrainedModel]:
    return make


@pytest.fixture(params=sorted(VARIANTS))
def published(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make(request.param)


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
