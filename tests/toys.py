"""Toy models that faults are planted in: those that are trained and tried, and those whose five steps of training are compared."""

from typing import Any

LLAMA: dict[str, Any] = {
    "mixer": {"kind": "attention", "heads": 4, "kv_heads": 2, "bias": False, "relative": {"kind": "rotary"}},
    "ffn": {"kind": "gated", "hidden": 48},
    "norm": {"kind": "rms"},
}
T5: dict[str, Any] = {
    "mixer": {"kind": "attention", "heads": 4, "scale": 1.0, "bias": False, "relative": {"kind": "buckets", "buckets": 8,
          "furthest": 20}},
    "ffn": {"kind": "mlp", "activation": "relu", "hidden": 48, "bias": False},
    "norm": {"kind": "rms"},
}  # fmt: skip
BASE: dict[str, Any] = {"vocab_size": 61, "dim": 32, "context": 72, "initial": {"std": 0.08}}
TOYS: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "decoder": {"depth": 2, "block": LLAMA}},
    "ruled": {**BASE, "ids": {"end": 3, "forced_begin": 7, "forced_end": 3, "banned": [[5], [9, 11]]},
              "decoder": {"depth": 2, "block": LLAMA}},
    "gpt2": {**BASE, "decoder": {"depth": 2, "entry": {"positions": "learned"}, "block": {
        "mixer": {"kind": "attention", "heads": 4}, "ffn": {"kind": "mlp", "activation": "gelu_tanh"}, "dropout": 0.2}}},
    "window": {**BASE, "decoder": {"depth": 2, "block": {**LLAMA, "mixer": {**LLAMA["mixer"], "window": 6}}}},
    "moe": {**BASE, "decoder": {"depth": 2, "block": {**LLAMA, "ffn": {
        "kind": "moe", "experts": 4, "expert": {"kind": "gated", "hidden": 24}, "renormalise": True, "balance": 0.1}}}},
    "both": {**BASE, "head": {"scale": 32**-0.5}, "encoder": {"depth": 2, "block": T5}, "decoder": {"depth": 2, "block": {
        **T5, "cross": {"kind": "attention", "heads": 4, "scale": 1.0, "bias": False}}}},
    "capped": {**BASE, "pad_vocab_to": 8, "head": {"scale": 0.25, "cap": 5.0}, "decoder": {"depth": 2, "block": {
        "mixer": {**LLAMA["mixer"], "cap": 2.0, "dropout": 0.2}, "ffn": LLAMA["ffn"], "norm": LLAMA["norm"]}}},
    "encoder": {**BASE, "encoder": {"depth": 2, "block": T5}},
    "layers": {**BASE, "decoder": {"depth": 3, "block": T5, "overrides": [
        {"layers": "1", "block": {"mixer": {"window": 6}}},
        {"layers": "2", "block": {"mixer": {"relative": {"kind": "buckets", "buckets": 6, "furthest": 9}}}}]}},
    "crossing": {**BASE, "encoder": {"depth": 1, "block": T5}, "decoder": {"depth": 2, "block": {
        **T5, "cross": {"kind": "attention", "heads": 4}}, "overrides": [
            {"layers": "1", "block": {"cross": {"kernel": "reference"}}}]}},
    "prefix": {**BASE, "decoder": {"depth": 2, "block": T5, "prefix": True}},
    "mixers": {**BASE, "decoder": {"depth": 2, "block": {"mixer": {"kind": "convolution", "taps": 3, "dilation": 2}},
        "overrides": [{"layers": "1", "block": {"mixer": {"kind": "recurrent"}}}]}},
}  # fmt: skip

PIECE: dict[str, Any] = {"vocab_size": 61, "dim": 32, "context": 24, "initial": {"std": 0.2}}
YARN = {"kind": "yarn", "factor": 4.0, "original": 12}
ROUTED = {"kind": "moe", "experts": 4, "active": 1, "balance": 0.1, "z": 0.1, "bias_rate": 0.05,
          "expert": {"kind": "gated", "hidden": 24}}  # fmt: skip
STEPS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gpt": ({**PIECE, "pad_vocab_to": 8, "head": {"scale": 0.5, "transform": True, "bias": True, "cap": 4.0}, "decoder": {
        "depth": 2, "entry": {"positions": "learned"}, "block": {"dropout": 0.1, "mixer": {
            "kind": "attention", "heads": 4, "cap": 1.5, "dropout": 0.2}}}}, {}, "fp32"),
    "moe": ({**PIECE, "decoder": {"depth": 2, "block": {**LLAMA, "ffn": ROUTED, "mixer": {
        **LLAMA["mixer"], "relative": {"kind": "rotary", "scaling": YARN}}}}}, {}, "fp32"),
    "t5": ({**PIECE, "decoder": {"depth": 2, "block": T5}}, {"optimizer": "adamw"}, "fp32"),
    "alibi": ({**PIECE, "decoder": {"depth": 2, "block": {"mixer": {"kind": "attention", "heads": 6, "head_dim": 8,
        "relative": {"kind": "alibi"}}}}}, {"optimizer": "adamw"}, "fp32"),
    "bf16": ({**PIECE, "decoder": {"depth": 2, "block": LLAMA}}, {"optimizer": "adamw"}, "bf16"),
}  # fmt: skip
