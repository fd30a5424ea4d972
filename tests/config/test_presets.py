"""Presets are files that build, and one number makes a model."""

import pytest

from heddle.config import GatedConfig, RMSNormConfig, RotaryConfig, preset, preset_names, sized
from heddle.config.presets import _table, preset_training
from heddle.errors import HeddleError


def test_there_are_presets_in_order() -> None:
    names = preset_names()
    assert names == sorted(names)
    assert {
        "gpt2-small",
        "gpt2-medium",
        "gpt2-large",
        "gpt2-xl",
        "nanogpt",
        "laptop-tiny",
        "laptop-small",
        "laptop-base",
    } <= set(names)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_says_only_what_differs(name: str) -> None:
    config = preset(name)
    assert config.stacks()
    assert "like" not in _table(name)


def test_training_defaults_stand_beside_the_model() -> None:
    """Batch and peak rate of GPT-3's table, where the batch is a whole number of sequences (L1-72, L1-73, D-18)."""
    for name, sequences, rate in (("gpt3-small", 256, 6e-4), ("gpt3-xl", 512, 2e-4), ("gpt3-175b", 1600, 6e-5)):
        assert preset_training(name) == {
            "batch_tokens": sequences * preset(name).context,
            "learning_rate": rate,
            "optimizer": "adamw",
        }
    assert preset_training("gpt2-small") == {}


@pytest.mark.parametrize(("wrong", "near"), [("gpt2-smal", "gpt2-small"), ("laptop_tiny", "laptop-tiny")])
def test_an_unknown_preset_names_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(HeddleError, match=f"^unknown preset '{wrong}'. Did you mean '{near}'"):
        preset(wrong)


@pytest.mark.parametrize("wrong", ["../model", "", "gpt2-small.toml", "zzz"])
def test_a_preset_is_a_name_and_no_path(wrong: str) -> None:
    with pytest.raises(HeddleError, match=r"`heddle presets` lists them all\.$"):
        preset(wrong)


def test_gpt2_has_layer_norms_and_its_relatives_differ_where_they_say() -> None:
    small, nano = preset("gpt2-small"), preset("nanogpt")
    assert {preset(name).decoder.block.norm.kind for name in preset_names() if name.startswith("gpt")} == {"layer"}
    assert small.decoder.block.ffn.activation == "gelu_tanh"
    assert nano == small.override({"pad_vocab_to": 64, "decoder.block.ffn.activation": "gelu"})
    xl = small.override({"dim": 1600, "decoder.depth": 48, "decoder.block.mixer.heads": 25})
    assert preset("gpt2-xl") == xl


@pytest.mark.parametrize("depth", [1, 2, 6, 12])
def test_one_number_makes_a_model(depth: int) -> None:
    config = sized(depth, vocab_size=1000)
    block = config.decoder.block
    assert (config.dim, config.decoder.depth, config.vocab_size, config.context) == (64 * depth, depth, 1000, 256)
    assert block.mixer.heads == depth
    assert block.mixer.width(config.dim) == 64
    assert isinstance(block.norm, RMSNormConfig)
    assert block.mixer.qk_norm == RMSNormConfig()
    assert block.mixer.relative == RotaryConfig()
    assert isinstance(block.ffn, GatedConfig)
    assert not block.ffn.bias
    assert not block.mixer.bias
    assert block.ffn.width(config.dim) % 64 == 0
    assert 0 <= block.ffn.width(config.dim) - 8 * config.dim / 3 < 64
    assert config.head.tied
    assert config.table_rows() == 1024


@pytest.mark.parametrize(("dim", "heads"), [(128, 2), (320, 5), (96, 1), (50, 1), (386, 1)])
def test_the_width_can_be_said(dim: int, heads: int) -> None:
    config = sized(2, vocab_size=10, dim=dim, context=7)
    assert (config.dim, config.decoder.block.mixer.heads, config.context) == (dim, heads, 7)
    assert 0 <= config.decoder.block.ffn.width(dim) - 8 * dim / 3 < 64


@pytest.mark.parametrize("depth", [0, -3])
def test_no_blocks_are_no_model(depth: int) -> None:
    with pytest.raises(HeddleError, match=f"depth = {depth}: must be at least 1"):
        sized(depth, vocab_size=10)
