"""Building and filling: on meta first, the same weights from the same seed, and the table of initial weights."""

from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import TransformerConfig, preset
from heddle.model import Transformer, build, initialise
from tests.models import COMBINATIONS, config_of, name_of


@pytest.fixture(scope="module")
def gpt2_small() -> Transformer:
    """12 layers, d = 768, at full size."""
    return build(preset("gpt2-small"))


@pytest.mark.lecture("L0-13")
def test_initial_weights_of_gpt2_small(gpt2_small: Transformer) -> None:
    residual = 0.02 / sqrt(24)
    assert residual == pytest.approx(0.0040825, abs=1e-7)
    assert gpt2_small.decoder.blocks[0].mixer.q.weight.mean().abs() < 1e-4
    for name, parameter in gpt2_small.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif parameter.ndim == 1:
            assert (parameter == 1).all(), name
        elif name.endswith(("mixer.o.weight", "ffn.down.weight")):
            assert parameter.std().item() == pytest.approx(residual, rel=0.01), name
        else:
            assert 0.0199 < parameter.std() < 0.0201, name
            assert parameter.mean().abs() < 2e-4, name


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_every_parameter_is_filled(config: TransformerConfig) -> None:
    """Whatever a module leaves open is written: gains 1, shifts 0, matrices drawn."""
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, float("nan"))
    initialise(model, config, torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if name.endswith(("bias", "sinks")):  # those of experts are stacked
            assert (parameter == 0).all(), name
        elif parameter.ndim == 1:
            assert (parameter == 1).all(), name
        else:
            assert parameter.std() > 0, name


@pytest.mark.lecture("L0-13", "D-45")
def test_the_config_says_how_wide() -> None:
    config = config_of(dim=64, depth=8).override({"initial": {"std": 0.5, "scale_residual": False}})
    for name, parameter in build(config).named_parameters():
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.5, rel=0.1), name
    scaled = build(config.override({"initial.scale_residual": True}))
    assert scaled.decoder.blocks[3].mixer.o.weight.std().item() == pytest.approx(0.5 / 4, rel=0.1)
    assert scaled.decoder.blocks[3].ffn.down.weight.std().item() == pytest.approx(0.5 / 4, rel=0.1)
    assert scaled.decoder.blocks[3].ffn.up.weight.std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.lecture("L0-13", "D-45")
def test_the_other_ways_to_begin() -> None:
    """GPT-2's code draws positions from N(0, 0.01²); Xavier's matrices are uniform, of variance 2 / (in + out)."""
    config = config_of(dim=64, positions="learned", tied=False)
    assert (config.initial.rule, config.initial.std, config.initial.scale_residual) == ("normal", 0.02, True)
    gpt2 = build(config.override({"initial.position_std": 0.01}))
    assert gpt2.decoder.entry.positions.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert gpt2.decoder.blocks[0].ffn.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    uniform = build(config.override({"initial.rule": "xavier"}))
    for name, parameter in uniform.named_parameters():
        if parameter.ndim > 1:
            edge = sqrt(6 / sum(parameter.shape))
            assert 0.98 * edge < parameter.abs().max() <= edge, name
            assert parameter.std().item() == pytest.approx(edge / sqrt(3), rel=0.1), name


def test_a_seed_gives_its_weights() -> None:
    config = config_of()
    one, same, other = (build(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_precision_rounds_the_same_draws() -> None:
    wide, narrow = build(config_of()), build(config_of(), dtype=torch.bfloat16)
    for name, parameter in narrow.named_parameters():
        assert torch.equal(parameter, wide.get_parameter(name).bfloat16())


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build(config_of())
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_a_model_on_meta_has_every_shape_and_no_memory(config: TransformerConfig) -> None:
    shapes, real = build(config, device="meta"), build(config)
    assert all(parameter.is_meta for parameter in shapes.parameters())
    assert {name: tensor.shape for name, tensor in shapes.state_dict().items()} == {
        name: tensor.shape for name, tensor in real.state_dict().items()
    }
    assert list(real.buffers()) == []
    if getattr(config.decoder.block.ffn, "dispatch", "") == "loop":
        return  # it counts which tokens chose an expert, and here are none to count
    tokens = torch.zeros(2, 4, dtype=torch.long, device="meta")
    assert shapes.logits(shapes(tokens).hidden).shape == (2, 4, config.vocab_size)


def test_a_model_of_any_size_has_shapes() -> None:
    huge = preset("gpt2-xl").override({"decoder.depth": 100, "dim": 32_000})
    assert sum(parameter.numel() for parameter in build(huge, device="meta").parameters()) > 10**12


@pytest.mark.parametrize(
    ("mixer", "name"),
    [
        ({"kind": "attention", "heads": 4}, "o.weight"),
        ({"kind": "convolution", "taps": 3}, "weight"),
        ({"kind": "linear", "taps": 4}, "weight"),
        ({"kind": "recurrent"}, "output.weight"),
    ],
    ids=["attention", "convolution", "linear", "recurrent"],
)
def test_what_any_mixer_adds_to_the_stream_begins_smaller(mixer: dict[str, Any], name: str) -> None:
    """8 layers of two branches: a root of 16, for every mixer's last matrix and for no other."""
    config = TransformerConfig.of(
        {"vocab_size": 11, "dim": 64, "context": 8, "decoder": {"depth": 8, "block": {"mixer": mixer}}}
    )
    for scaled, deviation in ((True, 0.02 / 4), (False, 0.02)):
        layer = build(config.override({"initial.scale_residual": scaled})).decoder.blocks[3].mixer
        for key, parameter in layer.named_parameters():
            if parameter.ndim > 1:
                expected = deviation if key == name else 0.02
                assert parameter.std().item() == pytest.approx(expected, rel=0.05), key


def test_what_has_no_two_sizes_is_drawn_as_usual_under_xavier() -> None:
    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(10_000))

    for rule in ("normal", "xavier"):
        vectors = Vectors()
        initialise(vectors, config_of().override({"initial": {"rule": rule}}), torch.Generator().manual_seed(0))
        assert vectors.scale.std().item() == pytest.approx(0.02, rel=0.03), rule


def test_a_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        state = build(config_of()).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in build(config_of()).state_dict().items())
