"""FLOPs: what the walk finds equals torch's own counter, and the lectures' closed forms where they describe the model."""

from typing import Any

import pytest
import torch

from heddle.account import counted, flops, training_flops_per_token, walk
from heddle.account.flops import looks_back, path
from heddle.account.formulas import causal_share, prefix_rows, quadratic_share
from heddle.account.forward import count_pass, prepared
from heddle.account.memory import saved_activations
from heddle.account.repeats import single_blocks
from heddle.config import TransformerConfig, preset, preset_names
from heddle.model import build
from heddle.nn import Layout
from tests.account.conftest import of_configs
from tests.models import EVERY

SMALL = preset("gpt2-small")
TINY = SMALL.override({"vocab_size": 97, "dim": 32, "context": 24, "decoder.depth": 2, "decoder.block.mixer.heads": 4})
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "grouped heads": {"decoder.block.mixer.kv_heads": 2},
    "one key head": {"decoder.block.mixer.kv_heads": 1},
    "gated": {"decoder.block.ffn": {"kind": "gated", "hidden": 40}},
    "untied": {"head.tied": False},
    "value width": {"decoder.block.mixer.value_dim": 5},
}


@pytest.mark.lecture("C-05", "L2-20", "L2-41")
@of_configs(*EVERY[::2], *range(10))
def test_equals_torchs_counter(config: TransformerConfig) -> None:
    """The stated products are those of a real pass, which the counter sees on the meta device; `test_kinds` tries the others.

    The pass is of all its layers and tokens: that fewer say the same is in `test_repeats`.
    """
    assert sum(walk(config, 3, 7).by_part().values()) == count_pass(prepared(config, 7, "reference"), 3, 7) > 0


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_equals_torchs_counter(name: str) -> None:
    """With one layer of each kind; a recurrent one is counted by a few of its tokens."""
    for single in single_blocks(preset(name)):
        assert sum(walk(single, 2, 40).by_part().values()) == counted(single, 2, 40, "reference") > 0


@pytest.mark.parametrize("name", ["gpt2", "grouped heads", "gated", "untied", "value width"])
def test_training_is_three_forward_passes(name: str) -> None:
    config = TINY.override(VARIANTS[name])
    cost = flops(config, 2, 20)
    assert cost.training == 3 * cost.forward == counted(config, 2, 20, "reference", training=True)
    assert cost.per_token == cost.training / 40


def test_training_flops_for_one_token() -> None:
    assert training_flops_per_token(TINY, 24) == flops(TINY).per_token


def test_training_flops_without_some_targets_or_gradients() -> None:
    """A head scores as many tokens as have a target; of what is frozen, one of three products is left out."""
    cost = flops(TINY, 1, 24)
    assert training_flops_per_token(TINY, 24, targets=0.25) == (3 * (cost.forward - 0.75 * cost.parts["head"])) / 24
    for trained in (0.0, 0.25):
        assert training_flops_per_token(TINY, 24, trained=trained) == round((2 + trained) * cost.forward / 24)
    classes = TINY.override({"head": {"kind": "classifier", "classes": 3}})
    assert training_flops_per_token(classes, 24, targets=0.1) == training_flops_per_token(classes, 24)


def test_the_crossover_does_not_depend_on_the_batch() -> None:
    assert flops(TINY, 3).crossover == flops(TINY, 1).crossover


@pytest.mark.lecture("C-01", "C-02", "C-03", "C-04", "C-05", "L2-11", "L2-13", "L2-38", "L2-39", "L2-41", "D-37")
def test_one_layer_of_gpt2() -> None:
    layer = flops(SMALL, 1, 1024).layer
    assert layer == {
        "projections": 4_831_838_208,
        "scores": 1_610_612_736,
        "weighted sum": 1_610_612_736,
        "feed-forward": 9_663_676_416,
        "head": 0,
    }
    assert sum(layer.values()) == 17_716_740_096
    twice = flops(SMALL, 1, 2048).layer
    assert sum(twice.values()) == 41_875_931_136
    ratios = {name: twice[name] / layer[name] for name in layer if name != "head"}
    assert ratios == {"projections": 2, "scores": 4, "weighted sum": 4, "feed-forward": 2}


@pytest.mark.lecture("C-05", "L2-10", "L2-41")
def test_far_out_a_layer_is_quadratic() -> None:
    one = SMALL.override({"decoder.depth": 1})
    near, far = (sum(walk(one, 1, length).first_layer().by_part().values()) for length in (131_072, 262_144))
    assert far / near == pytest.approx(3.932075, abs=1e-6)


@pytest.mark.lecture("C-07", "L2-41")
@pytest.mark.parametrize(
    ("length", "whole"), [(512, 136_160_477_184), (1024, 291_648_307_200), (2048, 660_606_025_728)]
)
def test_gpt2_whole_with_its_head(length: int, whole: int) -> None:
    cost = flops(SMALL, 1, length)
    assert cost.forward == cost.counted["sdpa"] == whole
    assert all(line.difference == 0 for line in cost.deck)


def test_a_batch_costs_its_rows() -> None:
    one, many = flops(TINY, 1, 24), flops(TINY, 5, 24)
    assert many.forward == 5 * one.forward
    assert all(line.difference == 0 for line in many.deck)


@pytest.mark.lecture("C-06", "D-37", "L2-41")
@pytest.mark.parametrize(
    ("length", "share"),
    [(1024, 0.181818), (2048, 0.307692), (4096, 0.470588), (4608, 0.5), (8192, 0.64), (131_072, 0.966038)],
)
def test_the_quadratic_share(length: int, share: float) -> None:
    cost = flops(SMALL.override({"decoder.depth": 1}), 1, length)
    assert cost.quadratic_share == pytest.approx(share, abs=1e-6)
    assert cost.quadratic_share == pytest.approx(quadratic_share(length, 768))
    assert cost.crossover == 4608


@pytest.mark.parametrize("name", ["grouped heads", "gated", "value width"])
def test_at_the_crossover_it_is_one_half(name: str) -> None:
    config = TINY.override(VARIANTS[name])
    crossover = flops(config).crossover
    below, above = (flops(config, 1, length).quadratic_share for length in (int(crossover) - 1, int(crossover) + 1))
    assert below < 0.5 < above


@pytest.mark.lecture("C-12", "L2-40")
def test_feed_forward_activations() -> None:
    def numbers(length: int) -> int:
        up, _ = walk(SMALL, 1, length).first_layer().products("feed-forward")
        return up.numbers

    assert numbers(1024) == 3_145_728
    assert numbers(2048) == 2 * numbers(1024)


@pytest.mark.lecture("C-13", "L0-96")
def test_one_pass_instead_of_one_per_prefix() -> None:
    together, alone = prefix_rows(1024)
    assert (alone, alone / together) == (524_800, 512.5)

    def rows(length: int) -> int:
        return walk(TINY, 1, length).products("projections")[0].rows

    assert prefix_rows(12) == (rows(12), sum(rows(length) for length in range(1, 13)))


@pytest.mark.lecture("C-14", "L2-20")
@pytest.mark.parametrize("block", [64, 128])
def test_blocks_above_the_diagonal_are_left_out(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.nn.kernels.plain.BLOCK", block)
    config = SMALL.override({"decoder.depth": 1})
    parts = walk(config, 1, 1024).by_part()
    square = parts["scores"] + parts["weighted sum"]
    left_out = counted(config, 1, 1024, "sdpa") - counted(config, 1, 1024, "plain")
    assert 1 - left_out / square == causal_share(1024, block)
    assert causal_share(1024, 64) == 0.53125


def test_what_the_plain_kernel_computes_is_reported() -> None:
    cost = flops(TINY, 1, 512)
    assert cost.counted["plain"] < cost.counted["sdpa"] == cost.forward
    line = cost.deck[-1]
    assert line.name == "attention, blocks skipped"
    assert line.difference == 0
    assert list(flops(TINY, 1, 1024).counted) == ["sdpa"]


def test_with_a_prefix_nothing_is_left_out() -> None:
    """The square is computed in full, and what is kept of it too, however long the prefix is."""
    causal = TINY.override({"context": 256})
    config = causal.override({"decoder.prefix": True})
    counted, least = flops(config), flops(causal)
    assert counted.counted["plain"] == counted.forward == least.forward > least.counted["plain"]
    assert "attention, blocks skipped" not in [line.name for line in counted.deck]
    left_out = 2 * 4 * 128 * 128 * 4  # of each layer and head one of four blocks, in fp32
    assert (
        saved_activations(config, 1, 256, kernel="plain").bytes
        >= saved_activations(causal, 1, 256, kernel="plain").bytes + left_out
    )


@pytest.mark.lecture("C-17", "L1-75")
def test_the_path_from_the_last_token_to_the_first() -> None:
    assert flops(TINY).path == path([None, None], 1000) == 1
    # The way is one layer long for a recurrence too, but it goes from token to token.
    rnn, attention = flops(preset("laptop-rnn"), length=64), flops(preset("laptop-small"), length=64)
    assert (rnn.path, rnn.steps, attention.path, attention.steps) == (1, 64, 1, 1)
    two_back = [range(3)] * 60
    assert [path(two_back, length) for length in (1, 3, 4, 5, 6, 101)] == [0, 1, 2, 2, 3, 50]
    assert path(two_back[:49], 101) is None
    assert path([range(1)] * 5, 2) is None
    assert path([range(3), None], 101) == 2
    # Holes between the taps stay holes: two tokens back and one back is never three back with one layer.
    assert [path([range(0, 4, 2)], length) for length in (1, 2, 3, 4, 5)] == [0, None, 1, None, None]


@pytest.mark.parametrize(
    "mixer",
    [
        {"kind": "convolution", "taps": 3, "dilation": 2},
        {"kind": "linear", "taps": 5},
        {"kind": "attention", "heads": 2, "window": 3},
    ],
    ids=lambda mixer: mixer["kind"],
)
def test_the_path_in_an_encoder_is_the_gradients(mixer: dict[str, Any]) -> None:
    """Half of a centred convolution's reach looks ahead: the first token that has a gradient says so."""
    for depth in range(1, 6):
        stack = {"depth": depth, "block": {"mixer": mixer, "norm": {"kind": "none"}, "ffn": {"kind": "none"}}}
        config = TransformerConfig.of({"vocab_size": 5, "dim": 8, "context": 9, "encoder": stack})
        model = build(config)
        x = torch.randn(1, 9, 8, requires_grad=True)
        model.encoder(x, Layout.whole(1, 9)).hidden[0, -1].sum().backward()
        there = bool(x.grad[0, 0].abs().sum() > 0)
        layers = flops(config).path
        assert (layers == depth) == there or layers < depth
        assert there == (layers is not None)


@pytest.mark.lecture("C-17", "L0-05")
def test_how_far_doubling_dilations_reach() -> None:
    """Three taps whose distance doubles see 3, 7, 15, … 511 tokens."""
    stack = preset("conv-lm").decoder
    assert stack is not None
    layers = [looks_back(block) for block in stack.blocks]
    for depth in range(1, 9):
        reached = 2 ** (depth + 1) - 1
        assert path(layers[:depth], reached) == depth
        assert path(layers[:depth], reached + 1) is None
