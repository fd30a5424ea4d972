"""A large model at laptop size: every choice that any of its layers makes is still made by one, and nothing else is."""

from typing import Any

import pytest

from heddle.config import TransformerConfig, preset, preset_names
from heddle.prove import laptop, prove_config
from tests.models import drawn

WIDE = {"vocab_size": 50_000, "dim": 512, "context": 64}
COUNTS = {
    *("shared", "active", "experts", "taps", "dilation", "heads", "kv_heads", "fraction"),
    *("short", "long"),  # a factor for each rotated pair of channels
}


def wide(stack: str = "decoder", overrides: list[dict[str, Any]] | None = None, **block: Any) -> TransformerConfig:
    """A model of six layers, as `block` says and the overrides change it."""
    described = {"depth": 6, "block": block, "overrides": overrides or []}
    return TransformerConfig.of({**WIDE, stack: described})


def layers(config: TransformerConfig) -> list[Any]:
    return list(config.last()[1].blocks)


def mixers(config: TransformerConfig, *names: str) -> list[tuple[Any, ...]]:
    """Some fields of every layer's mixer at laptop size."""
    return [tuple(getattr(block.mixer, name) for name in names) for block in layers(laptop(config))]


def choices(data: Any) -> Any:
    """A layer without its sizes: of a number only that it is said, whether heads are grouped, whether there are experts."""
    if not isinstance(data, dict):
        return "a size" if isinstance(data, int) and not isinstance(data, bool) else data
    chosen = {key: choices(value) for key, value in data.items() if key not in COUNTS}
    if "kv_heads" in data:
        kv_heads = data["kv_heads"] or data["heads"]
        chosen["key heads"] = "all" if kv_heads == data["heads"] else "one" if kv_heads == 1 else "some"
    if "experts" in data:
        chosen["experts"] = (bool(data["shared"]), data["active"] == 1, data["active"] == data["experts"])
    return chosen


def kinds(config: TransformerConfig) -> dict[str, set[str]]:
    """By stack, what its layers choose."""
    return {name: {str(choices(b.to_dict())) for b in stack.blocks} for name, stack in config.stacks().items()}


def assert_the_same_but_small(config: TransformerConfig) -> None:
    small = laptop(config)
    assert kinds(small) == kinds(config)
    for name, stack in small.stacks().items():
        large = config.stacks()[name]
        assert len(stack.blocks) >= 2
        assert stack.ends_in_norm() == large.ends_in_norm()
        assert stack.block.norm == large.block.norm, "the final norm is made from it"
        assert choices(stack.entry.to_dict() | {"position_dim": 0}) == choices(
            large.entry.to_dict() | {"position_dim": 0}
        )
    assert (small.table_rows() > small.vocab_size) <= (config.pad_vocab_to > 1)
    assert (small.head.kind, small.dropout, small.initial) == (config.head.kind, config.dropout, config.initial)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_keeps_its_choices(name: str) -> None:
    assert_the_same_but_small(preset(name))


@pytest.mark.parametrize("seed", range(40))
def test_a_random_model_keeps_its_choices(seed: int) -> None:
    assert_the_same_but_small(drawn(seed))


def test_a_window_in_the_first_layer_alone_stays_there() -> None:
    config = wide(mixer={"heads": 8}, overrides=[{"layers": "0::2", "block": {"mixer": {"window": 16}}}])
    assert mixers(config, "window") == [(7,), (None,)]
    assert mixers(preset("laptop-window"), "window") == [(7,), (None,)]


def test_what_is_open_in_any_layer_is_open_there() -> None:
    """Each of two layers leaves open what the other sets, so neither can be the one that the other differs from."""
    attention = {"kind": "attention", "heads": 8}
    first = {"mixer": {**attention, "kv_heads": 2, "relative": {"kind": "rotary"}}}
    second = {"mixer": {**attention, "window": 16, "cap": 5.0}, "ffn": {"kind": "gated", "hidden": 700}}
    overrides = [{"layers": "::2", "block": first}, {"layers": "1::2", "block": second}]
    config = wide(mixer={"kind": "linear"}, overrides=overrides)
    assert len(layers(laptop(config))) == 2
    assert_the_same_but_small(config)
    assert prove_config(config).holds


def test_a_kind_that_was_left_and_taken_up_again_is_kept() -> None:
    """The later override configures attention from scratch, so that the window of the block itself is gone there."""
    anew = [{"layers": "0", "block": {"mixer": {"kind": "linear"}}},
            {"layers": "0", "block": {"mixer": {"kind": "attention", "heads": 8}}}]  # fmt: skip
    config = wide(mixer={"heads": 8, "window": 16}, overrides=anew)
    assert [block.mixer.window for block in config.decoder.blocks[:2]] == [None, 16]
    assert mixers(config, "window") == [(None,), (7,)]


def test_every_distinct_layer_is_there_however_many() -> None:
    windows = [{"layers": str(i), "block": {"mixer": {"window": 8 * i}}} for i in range(1, 5)]
    experts = {"layers": "5", "block": {"ffn": {"kind": "moe", "experts": 4}}}
    config = wide(mixer={"heads": 8}, overrides=[*windows, experts])
    assert mixers(config, "window") == [(None,), (7,), (12,), (17,), (22,), (None,)]
    assert [block.ffn.kind for block in layers(laptop(config))] == ["mlp"] * 5 + ["moe"]


def test_an_encoders_convolution_stays_centred() -> None:
    config = wide("encoder", mixer={"kind": "convolution", "taps": 7, "dilation": 9})
    assert mixers(config, "taps", "dilation") == [(5, 4)] * 2
    assert prove_config(config).holds
    assert mixers(wide(mixer={"kind": "convolution", "taps": 8}), "taps") == [(4,)] * 2
    assert mixers(wide(mixer={"kind": "convolution", "taps": 2}), "taps") == [(2,)] * 2


@pytest.mark.parametrize(
    ("large", "small"),
    [([(71, 1), (2, 1)], [(4, 1), (2, 1)]), ([(16, 4), (32, 4)], [(4, 2), (8, 2)]), ([(6, None), (3, 1)], [(4, None), (3, 1)]),
     ([(32, 16), (12, 4), (7, None)], [(8, 4), (8, 2), (4, None)]), ([(1, None), (64, 1)], [(1, None), (4, 1)])],
    ids=str,
)  # fmt: skip
def test_different_numbers_of_heads_stay_different(large: list[Any], small: list[Any]) -> None:
    overrides = [
        {"layers": str(i), "block": {"mixer": {"heads": heads, "head_dim": 64, **({"kv_heads": keys} if keys else {})}}}
        for i, (heads, keys) in enumerate(large)
    ]
    config = wide(
        mixer={"heads": large[-1][0], "head_dim": 64}, overrides=[*overrides, {**overrides[-1], "layers": "2:"}]
    )
    assert mixers(config, "heads", "kv_heads") == small


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.25, 0.3, 0.4, 0.9, 1.0])
def test_a_fraction_of_the_channels_is_still_one(fraction: float) -> None:
    mixer = {"heads": 4, "head_dim": 80, "relative": {"kind": "rotary", "fraction": fraction}}
    for heads in (4, 3):
        config = wide(mixer={**mixer, "heads": heads})
        (chosen,) = {block.mixer for block in layers(laptop(config))}
        rotated = chosen.relative.rotated_dim(chosen.width(laptop(config).dim))
        assert rotated > 0
        assert (rotated == chosen.width(laptop(config).dim)) == (fraction == 1.0)


def test_stacks_that_share_a_table_share_it_when_small() -> None:
    """One says the width of its positions, the other leaves it at half: the same."""
    entry = {"positions": "learned", "combine": "concat"}
    block = {"mixer": {"heads": 8}}
    config = TransformerConfig.of({
        **WIDE, "head": {"tied": False}, "encoder": {"depth": 2, "block": block, "entry": entry},
        "decoder": {"depth": 2, "block": {**block, "cross": {"heads": 8}}, "entry": {**entry, "position_dim": 256}},
    })  # fmt: skip
    small = laptop(config)
    assert [stack.entry.positions_dim(small.dim) for stack in small.stacks().values()] == [small.dim // 2] * 2
