"""The table of what kernels can do, and what `auto` takes."""

from typing import get_args

import pytest

from heddle.config import AttentionConfig, DropoutConfig, TransformerConfig
from heddle.config.kernels import (
    BEYOND,
    CAPABILITIES,
    FEW,
    PLAIN_UP_TO,
    Capability,
    KernelName,
    Needs,
    choose,
    missing,
    refusal,
    together,
)
from heddle.errors import HeddleError
from heddle.nn.kernels import KERNELS

SHORT, LONG = PLAIN_UP_TO["cpu"], PLAIN_UP_TO["cpu"] + 1
EVERY = [
    Needs(cap, drops, sinks=sinks)
    for cap in (False, True)
    for drops in ("none", "inverted", "any")
    for sinks in (False, True)
]


def test_every_kernel_has_a_row() -> None:
    assert {*CAPABILITIES, "auto"} == {*get_args(KernelName)} == {*KERNELS}


@pytest.mark.parametrize("needs", EVERY, ids=str)
def test_one_kernel_can_do_whatever_a_layer_needs(needs: Needs) -> None:
    for device in ("cpu", "cuda"):
        for keys in (1, SHORT, LONG, 10**6):
            for queries in (1, FEW, keys):
                assert missing(choose("auto", needs, device, queries, keys), needs) is None


@pytest.mark.parametrize(
    ("device", "keys", "needs", "expected"),
    [
        ("cpu", 1, Needs(), "plain"),
        ("cpu", SHORT, Needs(), "plain"),
        ("cpu", LONG, Needs(), "sdpa"),
        ("cpu", LONG, Needs(cap=True), "blockwise"),
        ("cpu", SHORT, Needs(sinks=True), "plain"),
        ("cpu", LONG, Needs(sinks=True), "blockwise"),
        ("cpu", LONG, Needs(cap=True, drops="inverted"), "plain"),
        ("cpu", LONG, Needs(drops="inverted"), "sdpa"),
        ("cpu", LONG, Needs(drops="any"), "plain"),
        ("cuda", 1, Needs(), "sdpa"),
        ("cuda", LONG, Needs(cap=True), "blockwise"),
        ("mps", 64, Needs(), "sdpa"),
        ("meta", 64, Needs(), "sdpa"),
    ],
)
def test_auto_takes_the_fastest_that_can(device: str, keys: int, needs: Needs, expected: str) -> None:
    assert choose("auto", needs, device, keys, keys) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("needs", "expected"), [(Needs(), "sdpa"), (Needs(cap=True), "plain"), (Needs(sinks=True), "plain")]
)
def test_the_scores_of_few_queries_may_be_held(device: str, needs: Needs, expected: str) -> None:
    """A decoding step with capped scores is one product, however long the text."""
    assert choose("auto", needs, device, FEW, 10**6) == expected
    assert (choose("auto", needs, device, FEW + 1, 10**6) == expected) == (expected == "sdpa")


@pytest.mark.parametrize("needs", EVERY, ids=str)
def test_flex_is_taken_where_it_leaves_something_out_and_can(needs: Needs) -> None:
    taken = choose("auto", needs, "cuda", LONG, LONG, skips=True)
    assert (taken == "flex") == (missing("flex", needs) is None)
    assert missing(taken, needs) is None


@pytest.mark.parametrize("kernel", CAPABILITIES)
def test_a_named_kernel_is_taken_as_it_is(kernel: str) -> None:
    assert choose(kernel, Needs(cap=True, drops="any"), "cpu", 10, 10) == kernel


@pytest.mark.parametrize("kernel", CAPABILITIES)
@pytest.mark.parametrize("needs", EVERY, ids=str)
def test_configs_refuse_by_the_table(kernel: str, needs: Needs) -> None:
    """A model can be described exactly where its kernel can do what its layers need."""
    options = {"cap": 2.0 if needs.cap else None, "dropout": 0.0 if needs.drops == "none" else 0.1, "kernel": kernel}
    options |= {"sinks": needs.sinks}
    model = {
        "vocab_size": 9,
        "dim": 4,
        "context": 4,
        "decoder": {"depth": 1, "block": {"mixer": {"heads": 1, **options}}},
        "dropout": {"mask": "batch" if needs.drops == "any" else "element"},
    }
    why = refusal(kernel, needs)
    if why is None:
        TransformerConfig.of(model)
    else:
        with pytest.raises(HeddleError) as caught:
            TransformerConfig.of(model)
        assert f"kernel = {kernel!r}" in str(caught.value)
        assert "set kernel = 'auto'" in why


def test_what_layers_need() -> None:
    plain, capped = AttentionConfig(heads=1), AttentionConfig(heads=1, cap=3.0, dropout=0.1)
    classic, shared = DropoutConfig(style="classic"), DropoutConfig(mask="batch")
    assert plain.needs() == plain.needs(classic) == Needs()
    assert capped.needs() == Needs(True, "inverted")
    assert capped.needs(training=False) == capped.needs(shared, training=False) == Needs(True, "none")
    assert capped.needs(shared) == capped.needs(classic) == capped.needs(classic, training=False) == Needs(True, "any")


def test_needs_of_several_layers() -> None:
    assert together([]) == Needs()
    assert together([Needs(cap=True), Needs(drops="inverted"), Needs()]) == Needs(True, "inverted")
    assert together([Needs(sinks=True), Needs(cap=True)]) == Needs(cap=True, sinks=True)
    assert together([Needs(drops="any"), Needs(drops="inverted")]) == Needs(drops="any")


def test_the_last_resort_can_do_everything() -> None:
    last = CAPABILITIES[BEYOND[-1]]
    assert (last.caps, last.drops) == (True, "any")
    assert Capability(caps=True, drops="any").square is False
