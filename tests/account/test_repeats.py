"""What is measured of a few layers and counted as often as they stand there is what the whole model has."""

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from heddle.account import count
from heddle.account.flops import _counted, by_part
from heddle.account.memory import _cache_size, _kept, _states
from heddle.account.repeats import measured, repetition, shortened
from heddle.account.walk import walk
from heddle.config import TransformerConfig, sized
from tests.account.kinds import CROSS, model, stack


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("AAAAAAAA", (0, 1, 8)),
        ("ABABABABAB", (0, 2, 5)),
        ("BAAAAAAB", (1, 1, 6)),
        ("AAAAABBBBBBBBB", (5, 1, 9)),
        ("XABCABCABCABCY", (1, 3, 4)),
        ("ABABABA", (0, 1, 1)),
        ("AB", (0, 1, 1)),
        ("A", (0, 1, 1)),
    ],
)
def test_the_longest_repetition_is_found(kinds: str, found: tuple[int, int, int]) -> None:
    assert repetition(kinds) == found


EXPERTS = {"kind": "moe", "experts": 4, "expert": {"kind": "gated", "hidden": 5}, "shared": 1}
WINDOW = {"layers": "::2", "block": {"mixer": {"window": 3}}}
LAST = {"layers": "-1", "block": {"ffn": {"kind": "none"}}}
MODELS = {
    "equal": model(decoder=stack(depth=9)),
    "in turns": model(decoder=stack(depth=9, overrides=[WINDOW])),
    "in turns, the last another": model(decoder=stack(depth=10, overrides=[WINDOW, LAST])),
    "experts": model(decoder=stack(ffn=EXPERTS, depth=8)),
    "both": model(
        encoder=stack({"kind": "recurrent"}, depth=7),
        decoder=stack(block=CROSS, depth=8, overrides=[LAST]),
    ),
}
MEASURES: dict[str, Callable[[TransformerConfig], Any]] = {
    "states": lambda config: _states(config, "muon", "bf16"),
    "cache": lambda config: _cache_size(config, 2, 5, "fp32") if config.decoder else {},
    "kept": lambda config: {"bytes": _kept(config, 2, 5, "fp32", "plain")},
    "counted": lambda config: {"flops": _counted(config, 2, 5, "plain", training=True)},
    "walked": lambda config: by_part(walk(config, 2, 5)),
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_few_layers_say_what_all_would(config: TransformerConfig, measure: Any) -> None:
    short, left_out = shortened(config)
    assert left_out.keys() == config.stacks().keys()
    assert all(stack.depth < config.stacks()[name].depth for name, stack in short.stacks().items())
    assert measured(config, measure) == dict(measure(config))


def test_a_deep_model_is_accounted_for_at_once() -> None:
    began = process_time()
    report = count(sized(300, vocab_size=100, dim=64), length=16)
    assert report.parameters.total > 300 * 12 * 64**2
    assert process_time() - began < 20
