"""Every law, of every combination that can be built."""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.config import AttentionConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import Layout
from tests.laws import laws
from tests.laws.models import (
    AXES,
    COMBINATIONS,
    CONTEXT,
    HEADS,
    REFUSED,
    awake,
    config_of,
    name_of,
    pairwise,
    tokens_of,
)

Test = Callable[..., Any]


def every(test: Test) -> Test:
    """Run with each combination's model."""
    return pytest.mark.parametrize("model", COMBINATIONS, ids=name_of, indirect=True)(test)


def chosen(wanted: Callable[[TransformerConfig], bool]) -> Callable[[Test], Test]:
    """Run with the config of each combination that is meant."""
    found = [config for config in COMBINATIONS if wanted(config)]
    assert len(found) > 1
    return pytest.mark.parametrize("config", found, ids=name_of)


def attention_of(config: TransformerConfig) -> AttentionConfig:
    """What stands in the first layer, or an attention without anything where there is none."""
    mixer = config.decoder.block.mixer
    return mixer if isinstance(mixer, AttentionConfig) else AttentionConfig(heads=HEADS)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Transformer:
    return awake(request.param)


def test_every_pair_of_choices_is_built() -> None:
    """All, except those that the config refuses together."""
    met = set()
    for row in pairwise(AXES):
        cells = [(name, options.index(row[name])) for name, options in AXES.items()]
        met |= set(combinations(cells, 2))
    everything = {
        ((one, first), (two, second))
        for one, two in combinations(AXES, 2)
        for first in range(len(AXES[one]))
        for second in range(len(AXES[two]))
    }
    apart = {
        tuple(
            sorted(
                ((one, AXES[one].index(first)), (two, AXES[two].index(second))),
                key=lambda cell: list(AXES).index(cell[0]),
            )
        )
        for pair in REFUSED
        for (one, firsts), (two, seconds) in [pair.items()]
        for first in firsts
        for second in seconds
    }
    assert met == everything - apart


@pytest.mark.parametrize(
    "row", [dict(zip(pair, options, strict=True)) for pair in REFUSED for options in product(*pair.values())], ids=str
)
def test_what_is_left_out_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(HeddleError):
        build(config_of(**{"ffn": "moe", **row}), device="meta")


@every
@pytest.mark.lecture("L0-87")
def test_later_tokens_change_nothing(model: Transformer) -> None:
    laws.later_tokens_change_nothing(model)


@every
@pytest.mark.lecture("L0-87")
def test_gradients_stay_in_the_past(model: Transformer) -> None:
    laws.gradients_stay_in_the_past(model)


@every
def test_prefixes_are_prefixes(model: Transformer) -> None:
    laws.prefixes_are_prefixes(model)


@every
@settings(max_examples=2)
@given(data=st.data())
def test_cached_is_uncached(model: Transformer, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 20))
    cuts = data.draw(st.lists(st.integers(1, length), unique=True, max_size=6).map(sorted))
    laws.cached_is_uncached(model, length, cuts)


@pytest.mark.lecture("L2-08", "D-57")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("kernel", AXES["kernel"])
@pytest.mark.parametrize("positions", ["none", "both"])
def test_cached_is_uncached_one_by_one(kernel: str, positions: str, dtype: torch.dtype, tolerance: float) -> None:
    model = awake(config_of(kernel=kernel, positions=positions), dtype)
    laws.cached_is_uncached(model, 20, range(1, 20), tolerance)


@pytest.mark.parametrize("kernel", AXES["kernel"])
@pytest.mark.parametrize("cuts", [(63, 64, 65), (64,), (1, 128, 129), (100, 149)], ids=str)
def test_cached_is_uncached_as_the_cache_grows(kernel: str, cuts: tuple[int, ...]) -> None:
    laws.cached_is_uncached(awake(config_of(kernel=kernel, kv_heads=2, positions="both")), 150, cuts)


@every
@settings(max_examples=2)
@given(data=st.data())
def test_rows_together_are_rows_alone(model: Transformer, data: st.DataObject) -> None:
    step = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)
    laws.rows_together_are_rows_alone(model, data.draw(st.lists(step, min_size=1, max_size=4)))


@pytest.mark.parametrize("kernel", AXES["kernel"])
def test_rows_together_are_rows_alone_as_the_cache_grows(kernel: str) -> None:
    steps = [(60, 3, 0), (5, 1, 2), (1, 1, 1), (2, 70, 0), (1, 1, 1)]
    laws.rows_together_are_rows_alone(awake(config_of(kernel=kernel, positions="both", kv_heads=2)), steps)


@every
def test_forks_are_independent(model: Transformer) -> None:
    laws.forks_are_independent(model)


@every
def test_joined_rows_are_rows_alone(model: Transformer) -> None:
    laws.joined_rows_are_rows_alone(model)


@every
@pytest.mark.lecture("L0-20")
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(model: Transformer, side: str) -> None:
    laws.padding_changes_nothing(model, side)


LAYOUTS = {
    "right": Layout.padded((3, 6, 0), 6),
    "left": Layout.padded((3, 6, 0), 6, "left"),
    "packed": Layout.packed([[2, 2], [6], []], 6),
}


@every
@pytest.mark.lecture("L2-07")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_padding_sees_nothing(model: Transformer, layout: Layout) -> None:
    laws.padding_sees_nothing(model, layout)


@every
@pytest.mark.parametrize("side", ["right", "left"])
def test_gradients_pass_padding_by(model: Transformer, side: str) -> None:
    laws.gradients_pass_padding_by(model, side)


@every
def test_packed_is_separate(model: Transformer) -> None:
    laws.packed_is_separate(model)


@every
@pytest.mark.lecture("L0-66")
def test_evaluation_repeats(model: Transformer) -> None:
    laws.evaluation_repeats(model)


@every
@pytest.mark.lecture("L0-24", "L0-25", "L2-25", "L2-44", "L3-26")
def test_a_stack_is_its_blocks(model: Transformer) -> None:
    laws.stack_is_its_blocks(model)


PLACES = {"plain": Layout.plain(2, 7), **LAYOUTS}


@chosen(lambda config: getattr(config.decoder.block.mixer, "kernel", "") == "auto")
@pytest.mark.parametrize("layout", PLACES.values(), ids=PLACES)
def test_kernels_agree(config: TransformerConfig, layout: Layout) -> None:
    laws.kernels_agree(config, layout)


@pytest.mark.parametrize("layout", [Layout.plain(1, 150), Layout.padded((150, 20), 150)], ids=["plain", "padded"])
def test_kernels_agree_over_several_blocks_of_rows(layout: Layout) -> None:
    laws.kernels_agree(config_of(kv_heads=2, depth=1), layout)


@chosen(lambda config: attention_of(config).key_heads() < HEADS)
def test_grouped_is_copied(config: TransformerConfig) -> None:
    laws.grouped_is_copied(config)


@chosen(lambda config: config.decoder.entry.positions == "none" and attention_of(config).relative is not None)
def test_only_distances_count(config: TransformerConfig) -> None:
    laws.only_distances_count(awake(config))


@pytest.mark.lecture("L1-05", "L2-54")
@pytest.mark.parametrize("positions", ["learned", "rotary", "both"])
def test_order_matters(positions: str) -> None:
    laws.order_matters(config_of(positions=positions))


@pytest.mark.lecture("L1-05")
def test_without_positions_and_mask_order_does_not_matter() -> None:
    stack = laws.open_stack(config_of(positions="none"))
    table = awake(config_of(positions="none")).embedding
    layout = Layout.plain(1, 4)
    first, second = (stack(table(torch.tensor([ids])), layout).hidden for ids in ([1, 2, 3, 4], [3, 2, 1, 4]))
    laws.close(first[:, [2, 1, 0, 3]], second)


@chosen(lambda config: config.pad_vocab_to > 1)
def test_extra_entries_do_not_exist(config: TransformerConfig) -> None:
    laws.extra_entries_do_not_exist(config)


@chosen(lambda config: config.decoder.entry.positions == "learned")
@pytest.mark.lecture("L0-15")
def test_more_tokens_than_positions_are_refused(config: TransformerConfig) -> None:
    model = awake(config)
    full, cache = tokens_of(1, CONTEXT), model.new_cache(1)
    model(full)
    with pytest.raises(HeddleError, match=rf"^{CONTEXT + 1} tokens exceed the {CONTEXT} positions"):
        model(tokens_of(1, CONTEXT + 1))
    model(full, cache=cache)
    with pytest.raises(HeddleError, match=f"^{CONTEXT + 1} tokens exceed the {CONTEXT} positions"):
        model(tokens_of(1, 1), cache=cache)
    assert cache.lengths == [CONTEXT], "a refused step leaves the cache as it was"


@chosen(lambda config: config.decoder.entry.positions == "none")
def test_without_learned_positions_there_is_no_limit(config: TransformerConfig) -> None:
    assert awake(config)(tokens_of(1, CONTEXT + 1)).hidden.isfinite().all()
