"""Tiny models with large weights, so that what they say next is never close to a tie."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import (
    AttentionConfig,
    BlockConfig,
    EntryConfig,
    LayerNormConfig,
    MLPConfig,
    RMSNormConfig,
    RotaryConfig,
    StackConfig,
    TransformerConfig,
)
from heddle.config.model import InitialConfig
from heddle.model import Transformer, build

LECTURES = Path(__file__).parents[1] / "lectures"

Make = Callable[..., Transformer]


@pytest.fixture
def make() -> Make:
    """A model with random weights: `make(positions="rotary", kv_heads=2, context=64, vocab_size=61, dtype=...)`."""

    def tiny(
        positions: str = "rotary",
        kv_heads: int | None = None,
        context: int = 64,
        vocab_size: int = 61,
        dtype: torch.dtype = torch.float32,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> Transformer:
        rotary = RotaryConfig() if positions == "rotary" else None
        mixer = AttentionConfig(heads=4, kv_heads=kv_heads, relative=rotary, dropout=dropout)
        norm = RMSNormConfig() if positions == "rotary" else LayerNormConfig()
        entry = EntryConfig(positions="learned" if positions == "learned" else "none", dropout=dropout)
        block = BlockConfig(mixer=mixer, ffn=MLPConfig(), norm=norm, dropout=dropout)
        config = TransformerConfig(
            vocab_size=vocab_size,
            pad_vocab_to=8,
            dim=32,
            context=context,
            decoder=StackConfig(depth=2, block=block, entry=entry),
            initial=InitialConfig(std=0.3, scale_residual=False),
        )
        return build(config, seed=seed, dtype=dtype)

    return tiny


@pytest.fixture
def tiny_lm() -> tuple[Transformer, dict[str, Any]]:
    """The lectures' worked example of a whole model in float64, and what stands there about it."""
    file = LECTURES / "golden.json"
    (case,) = [case for case in json.loads(file.read_text())["cases"] if case["id"] == "tiny_lm"]
    sizes, weights = case["params"], case["weights"]
    mixer, norm = AttentionConfig(heads=sizes["h"]), LayerNormConfig(eps=sizes["eps"])
    block = BlockConfig(mixer=mixer, ffn=MLPConfig(), norm=norm)
    stack = StackConfig(depth=sizes["L"], block=block, entry=EntryConfig(positions="learned"))
    config = TransformerConfig(vocab_size=sizes["V"], dim=sizes["d"], context=sizes["T"], decoder=stack)
    state = {"embedding.weight": weights["E"], "decoder.entry.positions.weight": weights["P"]}
    state |= {"decoder.final_norm.weight": weights["final_gain"], "decoder.final_norm.bias": weights["final_shift"]}
    for number, layer in enumerate(weights["layers"]):
        at = f"decoder.blocks.{number}."
        for name, place in (("norm1", "mixer_residual"), ("norm2", "ffn_residual")):
            state[f"{at}{place}.before.weight"] = layer[f"{name}_gain"]
            state[f"{at}{place}.before.bias"] = layer[f"{name}_shift"]
        linear = {"mixer.q": "Q", "mixer.k": "K", "mixer.v": "V", "mixer.o": "O", "ffn.up": "1", "ffn.down": "2"}
        for name, letter in linear.items():
            state[f"{at}{name}.weight"] = torch.tensor(layer[f"W_{letter}"]).T  # the lectures multiply from the left
            state[f"{at}{name}.bias"] = layer[f"b_{letter}"]
    model = build(config, dtype=torch.float64)
    model.load_state_dict({name: torch.as_tensor(value, dtype=torch.float64) for name, value in state.items()})
    return model, case
