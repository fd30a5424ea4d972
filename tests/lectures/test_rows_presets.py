"""The lectures' named systems: what each is made of. Their counts are asserted in tests/account."""

import pytest
import torch

from heddle.account import parameter_count
from heddle.config import MLPConfig, preset, preset_names, sized
from heddle.model import build
from heddle.prove import laptop

GPT2 = ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"]
GPT3 = [f"gpt3-{size}" for size in ("small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b")]


@pytest.mark.lecture("L1-88", "L1-89", "L2-63", "L0-80", "D-49")
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("gpt2-small", 38_597_376),
        ("gpt3-175b", 617_558_016),
        ("llama-3-8b", 525_336_576),
        ("qwen3-8b", 622_329_856),
        ("qwen3-0.6b", 155_582_464),
    ],
)
def test_heads_weigh_v_times_d(name: str, table: int) -> None:
    """However many layers there are: these have one."""
    model = build(preset(name).override({"decoder.depth": 1}), "meta")
    assert model.head_weight().numel() == table == model.config.vocab_size * model.config.dim
    assert 50_000 * 768 == 38_400_000 != 50_257 * 768
    untied, tied = (parameter_count(model.config.override({"head.tied": each})) for each in (False, True))
    assert untied - tied == table


@pytest.mark.lecture("L1-63", "L1-64", "L1-65", "L1-66", "L1-67", "L1-68", "L1-69", "L1-70", "L1-71", "D-16", "D-17")
@pytest.mark.parametrize(
    ("size", "depth", "dim", "heads", "width"),
    [
        ("small", 12, 768, 12, 64),
        ("medium", 24, 1024, 16, 64),
        ("large", 24, 1536, 16, 96),
        ("xl", 24, 2048, 16, 128),
        ("2.7b", 32, 2560, 32, 80),
        ("6.7b", 32, 4096, 32, 128),
        ("13b", 40, 5120, 40, 128),
        ("175b", 96, 12288, 96, 128),
        ("xl-as-printed", 24, 2048, 24, 128),
        ("13b-as-printed", 40, 5140, 40, 128),
    ],
)
def test_the_sizes_of_gpt3(size: str, depth: int, dim: int, heads: int, width: int) -> None:
    config = preset(f"gpt3-{size}")
    mixer = config.decoder.block.mixer
    assert (config.decoder.depth, config.dim, mixer.heads, mixer.width(config.dim)) == (depth, dim, heads, width)
    assert (mixer.key_heads(), config.vocab_size, config.context) == (heads, 50_257, 2048)


@pytest.mark.lecture("L2-33", "L2-43", "L2-64", "L2-78", "D-20", "D-29", "D-60")
@pytest.mark.parametrize(
    ("names", "norm", "placement", "tied", "positions"),
    [
        ([*GPT2, *GPT3], "layer", "pre", True, "learned"),
        (["gpt1"], "layer", "post", True, "learned"),
        (["llama-7b", "llama-3-8b", "mistral-7b", "qwen3-8b", "qwen3-30b-a3b"], "rms", "pre", False, "rotary"),
        (["qwen3-0.6b"], "rms", "pre", True, "rotary"),
        (["falcon-40b"], "layer", "pre", True, "rotary"),
    ],
)
def test_what_families_are_made_of(names: list[str], norm: str, placement: str, tied: bool, positions: str) -> None:
    for name in names:
        config = preset(name)
        block, relative = config.decoder.block, config.decoder.block.mixer.relative
        assert (block.norm.kind, block.placement, config.head.tied) == (norm, placement, tied)
        assert (config.decoder.entry.positions if relative is None else relative.kind) == positions
        assert block.mixer.window == (4096 if name == "mistral-7b" else None)


@pytest.mark.lecture("L2-34", "L2-64", "L3-02", "D-30", "D-34")
@pytest.mark.parametrize("name", ["vaswani-base", "vaswani-big"])
def test_the_original_transformer(name: str) -> None:
    config = preset(name)
    for stack in config.stacks().values():
        assert stack.depth == 6
        assert (stack.block.placement, stack.block.ffn.activation) == ("post", "relu")
        assert (stack.entry.positions, stack.entry.scale) == ("sinusoidal", True)
        assert stack.block.mixer.width(config.dim) == 64
        assert stack.block.ffn.width(config.dim) == 4 * config.dim
        assert stack.block.dropout == (0.1 if name == "vaswani-base" else 0.3)
    model = build(config, "meta")
    assert model.source_embedding is None
    assert model.head.weight is None, "one table for source, target and head"


@pytest.mark.lecture("L2-64")
def test_an_encoder_that_is_given_a_language_head_shares_its_table() -> None:
    for name in ("bert-base-like", "bert-large-like"):
        config = preset(name).override({"head": {"kind": "language"}})
        assert config.head.tied
        assert build(config, "meta").head.weight is None


@pytest.mark.lecture("L0-68", "D-07")
def test_the_gpts_have_the_tanh_form_of_gelu() -> None:
    """As their released code; a new model has the exact one."""
    for name in ("gpt1", *GPT2, *GPT3):
        assert preset(name).decoder.block.ffn.activation == "gelu_tanh"
    assert preset("nanogpt").decoder.block.ffn.activation == MLPConfig().activation == "gelu"


@pytest.mark.lecture("L2-50", "D-40")
def test_vocabularies() -> None:
    sizes = {"gpt1": 40_478, "gpt2-small": 50_257, "bert-base-like": 30_522, "llama-7b": 32_000, "llama-3-8b": 128_256}
    sizes["qwen3-0.6b"] = 151_936
    assert {name: preset(name).vocab_size for name in sizes} == sizes


@pytest.mark.lecture("L1-61")
@pytest.mark.parametrize(("dim", "heads"), [(768, 12), (1024, 16), (12_288, 192)])
def test_heads_of_64_are_a_suggestion(dim: int, heads: int) -> None:
    suggested = sized(12, vocab_size=100, dim=dim)
    assert suggested.decoder.block.mixer.heads == heads
    assert suggested.override({"decoder.block.mixer.heads": heads // 2}).decoder.block.mixer.width(dim) == 128
    assert preset("gpt3-175b").decoder.block.mixer.heads == 96


@pytest.mark.lecture("L1-61")
@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith("gpt")])
def test_heads_are_about_as_many_as_layers(name: str) -> None:
    stack = preset(name).decoder
    assert 0.5 <= stack.block.mixer.heads / stack.depth <= 2


@pytest.mark.lecture("L3-05")
@pytest.mark.parametrize("name", ["gpt1", "gpt2-small", "gpt3-large", "llama-7b"])
def test_decoders_see_what_came_before_alone(name: str) -> None:
    config = laptop(preset(name))
    model = build(config, seed=0, dtype=torch.float64).eval()
    ids = torch.randint(config.vocab_size, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, prefix = model(ids).hidden[:, :7], model(ids[:, :7]).hidden
    torch.testing.assert_close(whole, prefix, rtol=0, atol=1e-12)


@pytest.mark.lecture("L3-05")
def test_decoders_have_no_cross_attention() -> None:
    """And their counts are the formula's: L(12d² + 13d) + Vd + Td + 2d, without the last norm in GPT-1."""
    for name in ("gpt1", "gpt2-small", "gpt3-large"):
        config = preset(name)
        model = build(config, "meta")
        assert not [each for each, _ in model.named_parameters() if "cross" in each]
        depth, dim = config.decoder.depth, config.dim
        formula = depth * (12 * dim**2 + 13 * dim) + (config.vocab_size + config.context) * dim
        assert sum(parameter.numel() for parameter in model.parameters()) == formula + (
            2 * dim if config.decoder.ends_in_norm() else 0
        )
