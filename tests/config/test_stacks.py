"""Stacks, overrides and heads: what fits together, and what is refused with a reason."""

from typing import Any

import pytest

from heddle.config import AttentionConfig, ConvolutionConfig, MoEConfig, TransformerConfig, preset
from heddle.config.base import merge
from tests.refusing import refusal

BLOCK = {"mixer": {"heads": 4}}
STACK: dict[str, Any] = {"depth": 6, "block": BLOCK}
BESIDE = {"depth": 2, "block": {"mixer": {"heads": 4}, "cross": {"heads": 4}}}


def config(**settings: Any) -> TransformerConfig:
    return TransformerConfig.of({"vocab_size": 20, "dim": 16, "context": 8, **settings})


def test_the_family_is_which_stacks_are_present() -> None:
    assert list(config(decoder=STACK).stacks()) == ["decoder"]
    assert config(encoder=STACK).last()[0] == "encoder"
    assert list(config(encoder=STACK, decoder=BESIDE).stacks()) == ["encoder", "decoder"]


def test_overrides_change_the_layers_they_name() -> None:
    """One in six sees everything; the last is a mixture of experts; of two the later one counts (L0-25)."""
    overrides = [
        {"layers": ":", "block": {"mixer": {"window": 4}}},
        {"layers": "5::6", "block": {"mixer": {"window": 7}}},
        {"layers": "-1", "block": {"ffn": {"kind": "moe", "experts": 4}}},
        {"layers": "0", "block": {"mixer": {"kind": "convolution"}}},
    ]
    blocks = config(decoder={**STACK, "overrides": overrides}).decoder.blocks
    assert isinstance(blocks[0].mixer, ConvolutionConfig)
    assert [b.mixer.window for b in blocks if isinstance(b.mixer, AttentionConfig)] == [4, 4, 4, 4, 7]
    assert [isinstance(b.ffn, MoEConfig) for b in blocks] == [False] * 5 + [True]


def test_one_layer_per_stack_stands_for_the_whole() -> None:
    shallow = preset("conv-lm").shallow()
    assert (len(shallow.decoder.blocks), shallow.decoder.ends_in_norm()) == (1, True)
    assert preset("gpt1").shallow().decoder.ends_in_norm() is False


YARN = {"kind": "yarn", "factor": 3, "original": 8}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "a model needs an encoder, a decoder or both"),
    ({"decoder": BESIDE}, "decoder.block.cross needs an encoder, and is allowed only in a decoder"),
    ({"encoder": BESIDE}, "encoder.block.cross needs an encoder, and is allowed only in a decoder"),
    (
        {"encoder": STACK, "decoder": STACK},
        "decoder.block.cross is missing: without it the decoder cannot attend to the encoder",
    ),
    ({"encoder": {**STACK, "prefix": True}}, "encoder.prefix: an encoder sees all tokens in both directions already"),
    (
        {"encoder": STACK, "decoder": {**BESIDE, "prefix": True}},
        "decoder.prefix: the encoder already reads the source in both directions; leave it out",
    ),
    (
        {"decoder": {**STACK, "prefix": True, "overrides": [{"layers": "1", "block": {"mixer": {"window": 4}}}]}},
        "decoder.prefix needs attention without a window, and a layer has window = 4: leave one of them out",
    ),
    (
        {
            "decoder": {
                **STACK,
                "prefix": True,
                "overrides": [{"layers": "1", "block": {"mixer": {"kind": "recurrent"}}}],
            }
        },
        "decoder.prefix needs attention in every layer, and mixer.kind = 'recurrent' looks only back",
    ),
    ({"decoder": STACK, "source_vocab_size": 9}, "source_vocab_size needs both an encoder and a decoder"),
    (
        {"encoder": STACK, "decoder": BESIDE, "head": {"kind": "classifier", "classes": 2}},
        "head.kind = 'classifier' reads one sequence; an encoder-decoder has two",
    ),
    ({"decoder": {**STACK, "entry": {"combine": "concat"}}}, "combine = 'concat' needs positions to concatenate"),
    (
        {"decoder": {**STACK, "entry": {"positions": "learned", "combine": "concat"}}},
        "head.tied needs token vectors as wide as the model",
    ),
    ({"decoder": {**STACK, "entry": {"position_dim": 4}}}, "position_dim applies to combine = 'concat'"),
    ({"decoder": {**STACK, "entry": {"offset": 2}}}, "offset applies to learned positions only"),
    (
        {"decoder": {**STACK, "entry": {"positions": "sinusoidal", "combine": "concat", "position_dim": 3}}},
        "sinusoidal positions need an even number of channels, not 3",
    ),
    ({"decoder": {**STACK, "overrides": [{"layers": "6", "block": {}}]}}, "does not select any of the 6 layers"),
    ({"decoder": {**STACK, "overrides": [{"layers": "x", "block": {}}]}}, "layers"),
    (
        {"decoder": {**STACK, "overrides": [{"layers": "0", "block": {"mixer": {"window": None}}}]}},
        "mixer.window is None",
    ),
    ({"decoder": {**STACK, "overrides": [{"layers": "0", "block": {"mixer": {"head": 3}}}]}}, "mixer.heads'?"),
    ({"decoder": {**STACK, "block": {**BLOCK, "wiring": "parallel", "placement": "post"}}}, "needs placement = 'pre'"),
    (
        {"decoder": {**STACK, "block": {**BLOCK, "wiring": "parallel", "ffn": {"kind": "none"}}}},
        "needs placement = 'pre', a feed-forward",
    ),
    ({"decoder": {**STACK, "block": {"mixer": {"heads": 4, "bias": ["q", "q"]}}}}, "bias names a projection twice"),
    (
        {"decoder": {**STACK, "block": {**BLOCK, "ffn": {"kind": "moe", "experts": 2, "active": 3}}}},
        "active = 3 must be at most experts = 2",
    ),
    (
        {"decoder": {**STACK, "block": {**BLOCK, "ffn": {"kind": "moe", "experts": 2, "shared_gate": True}}}},
        "belong to shared experts, but shared = 0: set shared",
    ),
    ({"decoder": {**STACK, "block": {"mixer": {"kind": "custom", "target": "nocolon"}}}}, "target"),
    (
        {"encoder": STACK, "decoder": merge(BESIDE, {"block": {"cross": {"window": 3}}})},
        "leave out its relative positions and window",
    ),
    (
        {"decoder": merge(STACK, {"block": {"mixer": {"relative": {"fraction": 0.2}}}})},
        "rotary positions rotate pairs of channels, and head_dim = 4 · fraction = 0 has no room for them",
    ),
    (  # Hugging Face transformers blends three channels as it would two, and fails for five
        {"decoder": merge(STACK, {"block": {"mixer": {"relative": {"fraction": 0.8, "scaling": YARN}}}})},
        "yarn blends frequencies over an even number of rotated channels, and head_dim = 4 · fraction = 3",
    ),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_what_cannot_work_is_refused_with_a_reason(settings: dict[str, Any], reason: str) -> None:
    assert reason in refusal(lambda: config(**settings))
