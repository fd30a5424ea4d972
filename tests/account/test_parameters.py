"""Parameters: the lectures' numbers for GPT-2, and for any decoder parts that sum to the total and a sum that reconciles."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.account import parameter_count, parameters, weights
from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import build
from tests.account.counts import parameters_of

SMALL = preset("gpt2-small")


def gpt(depth: int, dim: int, heads: int, context: int = 2048, **changes: Any) -> TransformerConfig:
    """A GPT of other sizes."""
    sizes = {"dim": dim, "context": context, "decoder.depth": depth, "decoder.block.mixer.heads": heads}
    return SMALL.override({**sizes, **changes})


@pytest.mark.lecture("L0-10", "L0-11", "L0-77", "L0-85", "L1-55", "D-12")
@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("nanogpt", 124_475_904),
    ],
)
def test_presets_have_their_published_counts(name: str, exact: int) -> None:
    assert parameters_of(name).total == parameter_count(preset(name)) == exact


@pytest.mark.lecture("L0-11")
def test_nanogpt_without_any_bias() -> None:
    none = {"mixer.bias": False, "ffn.bias": False, "norm.bias": False}
    config = preset("nanogpt").override({f"decoder.block.{key}": value for key, value in none.items()})
    assert parameters(config).total == 124_373_760


@pytest.mark.lecture("L0-78", "L0-79", "L0-80", "L0-81", "L0-82", "L0-84", "L1-48", "L1-49", "L1-50", "L1-52")
def test_deck_000_line_by_line() -> None:
    known = parameters(SMALL)
    lines = [(line.formula, line.value) for line in known.deck]
    assert lines == [
        ("3d²", 1_769_472),
        ("d²", 589_824),
        ("8d²", 4_718_592),
        ("12d²", 7_077_888),
        ("12d²·L", 84_934_656),
        ("Vd", 38_597_376),
        ("0, shared", 0),
        ("Td", 786_432),
        ("12d²·L + Vd + Td", 124_318_464),
    ]
    assert all(line.difference == 0 for line in known.deck)
    assert known.rule == 84_934_656
    assert known.rule_holds
    assert known.groups == {
        "transformer blocks": 84_934_656 + 13 * 12 * 768,
        "final norm": 2 * 768,
        "final linear layer": 38_597_376,
        "input matrices": 786_432,
    }


@pytest.mark.lecture("L0-84", "D-12")
def test_the_difference_is_itemised() -> None:
    known = parameters(SMALL)
    assert [(item.name, item.formula, item.count) for item in known.difference] == [
        ("attention biases", "4Ld", 36_864),
        ("feed-forward biases", "5Ld", 46_080),
        ("norm gains", "2Ld", 18_432),
        ("norm shifts", "2Ld", 18_432),
        ("final norm", "2d", 1_536),
    ]
    assert sum(item.count for item in known.difference) == 121_344 == 13 * 12 * 768 + 2 * 768


@pytest.mark.lecture("L0-84")
def test_the_tiny_model_of_the_examples() -> None:
    known = parameters(gpt(2, 4, 2, context=4, vocab_size=5))
    assert (known.deck[-1].value, known.total) == (420, 532)


@pytest.mark.lecture("L1-48", "L1-49", "L1-50", "L0-08")
def test_one_block_with_biases_and_norms() -> None:
    block = parameters(SMALL).block
    attention = sum(block[name] for name in ("q", "k", "v", "o"))
    assert (attention, attention + block["attention biases"]) == (2_359_296, 2_362_368)
    assert block["feed-forward"] / (attention + block["feed-forward"]) == pytest.approx(2 / 3)
    assert sum(block.values()) == 7_087_872 == 12 * 768**2 + 13 * 768
    assert parameters(gpt(13, 768, 12, 1024)).total - parameters(SMALL).total == 7_087_872


@pytest.mark.lecture("L0-76", "L0-81")
def test_a_head_of_its_own() -> None:
    own = parameters(SMALL.override({"head.tied": False}))
    assert own.total == own.untied == parameters(SMALL).untied == 163_037_184
    assert own.parts["head"] == own.parts["token embedding"] == 38_597_376
    lines = {line.name: line for line in own.deck}
    assert lines["token embedding"].value == lines["token embedding"].walked == 38_597_376
    assert sum(item.count for item in own.difference) == 121_344


@pytest.mark.lecture("L0-21", "L0-14", "L0-15")
def test_input_vectors() -> None:
    tables = [w for w in weights(build(SMALL, "meta")) if w.part in ("token embedding", "positions")]
    assert [w.shape for w in tables] == [(50_257, 768), (1024, 768)]
    assert sum(w.shape[0] for w in tables) == 51_281
    assert sum(w.count for w in tables) == 39_383_808


@pytest.mark.lecture("L0-83")
def test_heads_change_nothing() -> None:
    assert parameters(SMALL.override({"decoder.block.mixer.heads": 6})).total == parameters(SMALL).total


@pytest.mark.lecture("L0-86", "D-13")
def test_padded_rows_are_an_item_of_their_own() -> None:
    known = parameters_of("nanogpt")
    items = {item.name: (item.formula, item.count) for item in known.difference}
    assert items["padded vocabulary rows"] == ("47·d", 47 * 768)
    assert 50_304 == 50_257 + 47
    own = parameters(preset("nanogpt").override({"head.tied": False}))
    assert {item.name: item.count for item in own.difference}["padded vocabulary rows"] == 2 * 47 * 768


@pytest.mark.lecture("L1-55", "L1-56", "L1-57", "L1-58", "L1-59", "D-44")
def test_the_rule_gets_better_with_size() -> None:
    rows = [
        (gpt(12, 768, 12), 125_226_240, 0.6782),
        (gpt(24, 1024, 16), 355_871_744, 0.8486),
        (gpt(24, 1536, 16), 760_300_032, 0.8937),
        (gpt(24, 2048, 16), 1_315_723_264, 0.9181),
        (gpt(32, 2560, 32), 2_651_553_280, 0.9491),
        (gpt(32, 4096, 32), 6_658_404_352, 0.9676),
        (gpt(40, 5120, 40), 12_853_386_240, 0.9790),
        (gpt(96, 12288, 96), 174_604_259_328, 0.9962),
    ]
    known = [parameters(config) for config, _, _ in rows]
    assert [k.total for k in known] == [exact for _, exact, _ in rows]
    assert [round(k.rule_share, 4) for k in known] == [share for _, _, share in rows]
    assert known[-1].rule == 173_946_175_488
    shares = [k.rule_share for k in known]
    assert shares == sorted(shares)


@pytest.mark.lecture("D-19", "L1-58")
def test_the_rule_can_overestimate() -> None:
    """Falcon 40B's widths: 128 heads of 64, 8 key heads, no linear biases, learned by the same count in any wiring."""
    config = TransformerConfig.of(
        {
            "vocab_size": 65_024,
            "dim": 8192,
            "context": 2048,
            "decoder": {
                "depth": 60,
                "block": {
                    "mixer": {"heads": 128, "kv_heads": 8, "bias": False, "relative": {}},
                    "ffn": {"kind": "mlp", "bias": False},
                },
            },
        }
    )
    known = parameters(config)
    assert known.total == 41_303_293_952
    assert known.rule == 48_318_382_080 > known.total
    assert not known.rule_holds
    assert known.untied == 41_835_970_560
    items = {item.name: item for item in known.difference}
    assert items["k not d × d"].count == 60 * (8192 * 512 - 8192**2)
    assert items["positions not learned"].count == -2048 * 8192


norms = st.sampled_from([{"kind": "layer"}, {"kind": "layer", "bias": False}, {"kind": "rms"}])


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    """Any decoder that can be described, small."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    mixer = {
        "heads": heads,
        "kv_heads": draw(st.sampled_from([None, kv_heads])),
        "head_dim": draw(st.sampled_from([None, 2, 6])),
        "value_dim": draw(st.sampled_from([None, 3])),
        "bias": draw(st.booleans()),
        "qk_norm": draw(st.none() | norms),
    }
    ffn = {
        "kind": draw(st.sampled_from(["mlp", "gated"])),
        "hidden": draw(st.sampled_from([None, 5, 32])),
        "bias": draw(st.booleans()),
    }
    block = {"mixer": mixer, "ffn": ffn, "norm": draw(norms), "placement": draw(st.sampled_from(["pre", "post"]))}
    decoder = {
        "depth": draw(st.integers(1, 3)),
        "block": block,
        "entry": {"positions": draw(st.sampled_from(["learned", "none"]))},
        "final_norm": draw(st.sampled_from([None, True, False])),
    }
    return TransformerConfig.of(
        {
            "vocab_size": draw(st.integers(1, 99)),
            "pad_vocab_to": draw(st.sampled_from([1, 8, 64])),
            "dim": heads * draw(st.sampled_from([2, 4])),
            "context": draw(st.integers(1, 16)),
            "decoder": decoder,
            "head": {"tied": draw(st.booleans())},
        }
    )


@given(configs())
@settings(max_examples=60)
@pytest.mark.lecture("L0-78")
def test_parts_sum_and_the_sum_reconciles(config: TransformerConfig) -> None:
    known = parameters(config)
    total = sum(parameter.numel() for parameter in build(config).parameters())
    assert known.total == total == sum(known.parts.values()) == sum(known.groups.values())
    assert known.parts["other"] == 0
    assert known.total - known.deck[-1].value == sum(item.count for item in known.difference)
    assert known.deck[-1].value == sum(line.value for line in known.deck[4:-1])
    assert known.untied == parameter_count(config.override({"head.tied": False}))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 50), st.integers(1, 20))
@settings(max_examples=40)
@pytest.mark.lecture("L1-59")
def test_the_closed_form_of_a_gpt(depth: int, heads: int, width: int, words: int, context: int) -> None:
    dim = heads * width
    known = parameters(gpt(depth, dim, heads, context, vocab_size=words))
    assert known.total == depth * (12 * dim**2 + 13 * dim) + words * dim + context * dim + 2 * dim
    assert sum(item.count for item in known.difference) == 13 * depth * dim + 2 * dim
    assert all(item.formula for item in known.difference)


@pytest.mark.lecture("L1-51")
def test_one_width_only() -> None:
    with pytest.raises(HeddleError, match="dim"):
        SMALL.override({"decoder.dim": 512})
