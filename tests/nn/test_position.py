"""Positions: a table, sines, rotations written out as complex numbers, and what is added to scores."""

from math import pi
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_neighbours
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from heddle.config import DynamicScaling, LongRopeScaling, RotaryConfig
from heddle.nn import Embedding, Layout, Rotary, rotation
from heddle.nn.position import (
    NTK,
    SCALINGS,
    Alibi,
    Buckets,
    Linear,
    Llama3,
    LongRope,
    Relative,
    Scaling,
    SinusoidalPositions,
    Yarn,
    make_relative,
)
from heddle.nn.rotation import rotate
from tests.kernels import called


def table(context: int, dim: int) -> Embedding:
    positions = Embedding(context, dim)
    torch.nn.init.normal_(positions.weight)
    return positions


def test_a_position_has_its_row() -> None:
    positions = table(6, 3)
    layout = Layout.packed([[2, 3]], 5)
    assert torch.equal(positions(layout.position)[0], positions.weight[[0, 1, 0, 1, 2]])


def test_a_position_beyond_the_table_is_an_error() -> None:
    with pytest.raises(IndexError):
        table(4, 3)(torch.tensor([[2, 3, 4]]))


@pytest.mark.parametrize("base", [10.0, 10_000.0, 1e6])
def test_a_rotation_is_a_product_of_complex_numbers(base: float) -> None:
    """(a + ib) · e^(i · position · base^(-2j/d)), with a from the first half of the channels and b from the second."""
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    layout = Layout.whole(2, 7)
    rotated = rotate(x, Rotary(8, base)(layout))
    pairs = torch.complex(x[..., :4], x[..., 4:])
    frequency = base ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    angle = torch.arange(7, dtype=torch.float64)[:, None] * frequency
    expected = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(
        rotated, torch.cat((expected.real, expected.imag), -1), rtol=0, atol=1e-5
    )  # angles are fp32


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (Layout.whole(3, 4), 1),
        (Layout.padded((4, 2, 1), 4), 1),
        (Layout.padded((4, 2, 1), 4, "left"), 3),
        (Layout.packed([[4], [2, 2], [1]], 4), 3),
    ],
    ids=lambda value: getattr(value, "form", value),
)
def test_angles_are_made_once_where_rows_share_them(layout: Layout, rows: int) -> None:
    cos, sin, _ = Rotary(6)(layout)
    assert cos.shape == sin.shape == (rows, 1, 4, 6)
    assert cos.dtype == torch.float32
    every = layout.position[:, None, :, None] * 10_000 ** -(torch.arange(0, 6, 2) / 6)
    torch.testing.assert_close(cos.expand(3, 1, 4, 6), every.cos().repeat(1, 1, 1, 2))
    torch.testing.assert_close(sin.expand(3, 1, 4, 6), torch.cat((-every.sin(), every.sin()), -1))


def test_rotation_keeps_the_precision_of_what_it_turns() -> None:
    rotation = Rotary(4)(Layout.whole(1, 3))
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert rotate(torch.randn(1, 1, 3, 4, dtype=dtype), rotation).dtype == dtype


@pytest.mark.parametrize("neighbours", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("rotated_dim", [10, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_few_launches_turn_in_the_same_way(
    dtype: torch.dtype, rotated_dim: int, neighbours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, forwards and backwards."""
    x, above = torch.randn(2, 2, 7, 3, 10).to(dtype).transpose(2, 3).unbind()
    angles = Rotary(10, rotated_dim=rotated_dim, neighbours=neighbours)(Layout.whole(2, 7))
    results = []
    for function in (rotation.rotated, rotation._rotated_in_few_launches):
        monkeypatch.setattr(rotation, "rotated", function)
        learned = x.clone().requires_grad_()
        turned = rotate(learned, angles)
        results.append((turned.detach(), *torch.autograd.grad(turned, learned, above)))
    tolerance = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]  # one rounding
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dim", [8, 7])
def test_all_sines_and_then_all_cosines_is_marians_table(dim: int) -> None:
    expected = MarianSinusoidalPositionalEmbedding(50, dim).create_weight()
    result = SinusoidalPositions(dim, halves=True)(torch.arange(50)[None])[0]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_sines_follow_the_position_not_the_slot_and_are_not_learned() -> None:
    positions = SinusoidalPositions(6)
    packed = positions(Layout.packed([[2, 3]], 5).position)[0]
    assert torch.equal(packed[:2], packed[2:4])
    assert positions(torch.tensor([[3]])).dtype == torch.float32
    assert not positions.state_dict()


def test_only_the_first_channels_turn() -> None:
    x, layout = torch.randn(2, 3, 7, 10), Layout.whole(2, 7)
    for neighbours in (False, True):
        rotated = rotate(x, Rotary(10, rotated_dim=4, neighbours=neighbours)(layout))
        assert torch.equal(rotated[..., 4:], x[..., 4:])
        alone = rotate(x[..., :4], Rotary(4, neighbours=neighbours)(layout))
        assert torch.equal(rotated[..., :4], alone)
        assert not torch.equal(alone[:, :, 1:], x[:, :, 1:, :4])


def test_neighbours_are_the_same_rotation_of_other_pairs() -> None:
    x, layout = torch.randn(2, 3, 7, 8), Layout.whole(2, 7)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # the first of each pair, then the second
    rotated = rotate(x, Rotary(8, neighbours=True)(layout))
    assert torch.equal(rotated[..., order], rotate(x[..., order], Rotary(8)(layout)))


def test_neighbours_turn_as_in_gpt_j() -> None:
    x, layout = torch.randn(2, 7, 3, 8), Layout.whole(1, 7)
    cos, sin, neighbours = Rotary(8, neighbours=True)(layout)
    assert neighbours
    expected = turn_neighbours(x, sin[:, 0, :, 1::2], cos[:, 0, :, 1::2]).transpose(1, 2)
    torch.testing.assert_close(rotate(x.transpose(1, 2), (Rotary(8, neighbours=True)(layout))), expected)


def published(kind: str, theta: float, head_dim: int, length: int | None = None, **fields: Any) -> tuple[Tensor, float]:
    """Inverse frequencies and the factor on cosines and sines, as transformers computes them."""
    rope = {"rope_type": kind, "rope_theta": theta, **fields}
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=100,
        rope_parameters=rope,
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA = {"factor": 8.0, "original_max_position_embeddings": 512, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(("base", "head_dim"), [(10_000.0, 64), (500_000.0, 128), (100.0, 6)])
@pytest.mark.parametrize(
    ("scaling", "kind", "length", "fields"),
    [
        (Linear(3.0), "linear", None, {"factor": 3.0}),
        # Their rule grows with the length: at 250 of 100 positions its factor 2 is 2 · 2.5 - 1.
        (NTK(4.0), "dynamic", 250, {"factor": 2.0}),
        (Yarn(4.0, 64), "yarn", None, YARN),
        (Yarn(4.0, 64, fast=8.0, slow=2.0), "yarn", None, {**YARN, "beta_fast": 8.0, "beta_slow": 2.0}),
        (Yarn(1.0, 64), "yarn", None, {**YARN, "factor": 1.0}),
        (Yarn(4.0, 64, whole=False), "yarn", None, {**YARN, "truncate": False}),
        (
            Yarn(4.0, 64, fast=9.0, slow=9.0, whole=False),
            "yarn",
            None,
            {**YARN, "beta_fast": 9.0, "beta_slow": 9.0, "truncate": False},
        ),
        (Yarn(4.0, 64, length=1.5), "yarn", None, {**YARN, "attention_factor": 1.5}),
        (Llama3(8.0, 512), "llama3", None, LLAMA),
        (SCALINGS[DynamicScaling](DynamicScaling(factor=2, original=100, length=250)), "dynamic", 250, {"factor": 2.0}),
        (SCALINGS[DynamicScaling](DynamicScaling(factor=2, original=100, length=70)), "dynamic", 70, {"factor": 2.0}),
    ],
    ids=str,
)
def test_scaled_frequencies_are_those_of_transformers(
    scaling: Scaling, kind: str, length: int | None, fields: dict[str, Any], base: float, head_dim: int
) -> None:
    frequencies, magnitude = published(kind, base, head_dim, length, **fields)
    rotary = Rotary(head_dim, base, scaling=scaling)
    torch.testing.assert_close(rotary.frequencies(), frequencies, rtol=2e-6, atol=0)
    cos, sin, _ = rotary(Layout.whole(1, 9))
    assert scaling.magnitude == pytest.approx(magnitude)
    torch.testing.assert_close(cos.square() + sin.square(), torch.full_like(cos, magnitude**2))


@pytest.mark.parametrize(("length", "used"), [(16, (1.0, 1.5, 2.0)), (17, (1.0, 4.0, 9.0))])
def test_longrope_is_that_of_transformers(length: int, used: tuple[float, ...]) -> None:
    config = LongRopeScaling(short=(1.0, 1.5, 2.0), long=(1.0, 4.0, 9.0), original=16, length=length, magnitude=1.25)
    fields = {"short_factor": list(config.short), "long_factor": list(config.long), "attention_factor": 1.25}
    expected, magnitude = published("longrope", 100.0, 6, length, original_max_position_embeddings=16, **fields)
    scaling = SCALINGS[LongRopeScaling](config)
    assert scaling == LongRope(used, magnitude)
    torch.testing.assert_close(Rotary(6, 100.0, scaling=scaling).frequencies(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("scaling", "kind", "length", "fields"),
    [
        (Linear(3.0), "linear", None, {"factor": 3.0}),
        (NTK(4.0), "dynamic", 250, {"factor": 2.0}),
        (Llama3(8.0, 512), "llama3", None, LLAMA),
        (LongRope((1.0, 2.0, 3.0)), "longrope", 9, {"short_factor": [1.0, 2.0, 3.0], "long_factor": [9.0] * 3,
                                                    "original_max_position_embeddings": 64, "factor": 1.0}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("neighbours", [False, True])
def test_an_odd_number_of_channels_rotates_one_more(
    scaling: Scaling, kind: str, length: int | None, fields: dict[str, Any], neighbours: bool
) -> None:
    """Five of eight: three pairs, at base^(-2i/5)."""
    expected, _ = published(kind, 100.0, 8, length, partial_rotary_factor=0.7, **fields)
    rotary = Rotary(8, 100.0, rotated_dim=5, neighbours=neighbours, scaling=scaling)
    torch.testing.assert_close(rotary.frequencies(), expected, rtol=2e-6, atol=0)
    x = torch.randn(1, 1, 4, 8)
    changed = (rotate(x, rotary(Layout.whole(1, 4))) != x).any(2)[0, 0]
    assert changed.tolist() == [True] * 6 + [False] * 2


def test_yarn_by_hand() -> None:
    """Four pairs at base 10^4 turn by 1, 0.1, 0.01 and 0.001; over 1,000 positions the ramp goes from pair 1 to pair 3.

    Pair c turns 1000 / (2π · 10^c) times. A factor of 4 leaves pairs 0 and 1, takes the mean of 0.01 and 0.01 / 4 for pair 2
    and a quarter of pair 3; vectors are 0.1 · ln 4 + 1 times as long.
    """
    turns = [1000 / (2 * pi * 10**pair) for pair in (1, 3)]
    settings = {"kind": "yarn", "factor": 4.0, "original": 1000, "fast": turns[0], "slow": turns[1], "whole": False}
    config = RotaryConfig.of({"kind": "rotary", "base": 10_000.0, "scaling": settings})
    rotary = make_relative(Relative(config, 8, causal=True))
    assert isinstance(rotary, Rotary)
    torch.testing.assert_close(rotary.frequencies(), torch.tensor([1.0, 0.1, 0.00625, 0.00025]), rtol=1e-5, atol=0)
    cos, sin, _ = rotary(Layout.whole(1, 3))
    torch.testing.assert_close(cos[0, 0, 0], torch.full((8,), 1.1386294))
    torch.testing.assert_close(cos[0, 0, 2, 2], 1.1386294 * torch.tensor(0.0125).cos())
    torch.testing.assert_close(sin[0, 0, 2, 4 + 2], 1.1386294 * torch.tensor(0.0125).sin())


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_slopes_are_blooms(heads: int) -> None:
    alibi = Alibi(heads)
    expected = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi.slopes(), expected)
    assert alibi.slopes().unique().numel() == heads


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [1 / 256]),
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
    ],
)
def test_slopes_by_hand(heads: int, slopes: list[float]) -> None:
    """A power of two down to 2^-8 in equal steps; six heads are four's, and then every other one of eight's."""
    assert Alibi(heads).slopes().tolist() == slopes


def test_alibi_falls_with_the_distance_on_both_sides() -> None:
    layout = Layout.whole(3, 4)
    bias = Alibi(2)(layout, layout)
    assert bias.shape == (1, 2, 4, 4)
    assert bias.dtype == torch.float32
    assert bias[0, 0].tolist() == [[-abs(t - s) / 16 for s in range(4)] for t in range(4)]
    assert bias[0, 1].tolist() == [[-abs(t - s) / 256 for s in range(4)] for t in range(4)]
    assert torch.equal(Alibi(2, 0.25)(layout, layout), bias / 4)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (4, 3), (16, 1000)])
def test_buckets_are_t5s(buckets: int, furthest: int, both_ways: bool) -> None:
    distance = torch.arange(-1500, 1501)
    expected = T5Attention._relative_position_bucket(distance, both_ways, buckets, furthest)
    assert torch.equal(Buckets(2, buckets, furthest, both_ways).bucket(distance), expected)


def test_buckets_by_hand() -> None:
    """Of 8 up to 20: 0 to 3 by themselves, then 4 · 5^(i/4) = 4, 5.98, 8.94, 13.4, and the last from there to anywhere."""
    expected = [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]
    buckets = learned(3, False)
    assert buckets.bucket(-torch.arange(22)).tolist() == expected
    assert buckets.bucket(torch.tensor([-10_000, 1, 10_000])).tolist() == [7, 0, 0]
    both = Buckets(3, 16, 20, both_ways=True)
    assert both.bucket(-torch.arange(22)).tolist() == expected
    assert both.bucket(torch.arange(1, 22)).tolist() == [8 + bucket for bucket in expected[1:]]
    layout = Layout.whole(1, 15)
    assert torch.equal(buckets(layout, layout)[0, :, 14, 0], buckets.weight[7])


def learned(heads: int, both_ways: bool) -> Buckets:
    buckets = Buckets(heads, 8, 20, both_ways)
    torch.nn.init.normal_(buckets.weight)
    return buckets


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_bucket_adds_its_weight(both_ways: bool) -> None:
    buckets, layout = learned(3, both_ways), Layout.whole(2, 6)
    bias = buckets(layout, layout)
    assert bias.shape == (1, 3, 6, 6)
    for query in range(6):
        for key in range(6):
            bucket = buckets.bucket(torch.tensor(key - query))
            assert torch.equal(bias[0, :, query, key], buckets.weight[bucket])
    assert {name: tuple(value.shape) for name, value in buckets.named_parameters()} == {"weight": (8, 3)}


def test_a_bias_is_of_fp32_or_wider() -> None:
    layout = Layout.whole(1, 3)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert learned(2, False).to(dtype)(layout, layout).dtype == expected


@pytest.mark.parametrize(
    ("pair", "rows"),
    [
        ((Layout.whole(2, 4), Layout.whole(2, 5)), 1),
        ((Layout.padded((4, 2), 4),) * 2, 1),
        ((Layout.padded((4, 2), 4, "left"),) * 2, 2),
        ((Layout.packed([[1, 3], [4]], 4),) * 2, 2),
        (called((3, 3), (1, 1)), 1),
        (called((3, 5), (1, 1)), 2),
    ],
    ids=["plain", "padded", "left", "packed", "uniform", "ragged"],
)
@pytest.mark.parametrize("kind", [Alibi(2), learned(2, False), learned(2, True)], ids=["alibi", "one way", "both ways"])
def test_a_bias_follows_positions_and_is_made_once_where_rows_share_them(
    kind: Alibi | Buckets, pair: tuple[Layout, Layout], rows: int
) -> None:
    bias = kind(*pair)
    assert bias.shape == (rows, 2, pair[0].width, pair[1].width)
    apart = [Layout(layout.position, layout.segment, "packed") for layout in pair]
    assert torch.equal(bias.expand(2, -1, -1, -1), kind(*apart))
