"""What is measured of a few layers and counted as often as they stand there is what the whole model has."""

from collections.abc import Callable
from typing import Any

import pytest

from heddle.account import count
from heddle.account.forward import count_pass
from heddle.account.memory import _cache_size, _saved_bytes, _states
from heddle.account.repeats import measured, repetition, shortened, stepped
from heddle.config import RecurrentConfig, TrainConfig, TransformerConfig, sized
from heddle.nn import Block
from tests.models import config_of
from tests.thorough import first


@pytest.mark.parametrize(
    ("kinds", "expected"),
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
def test_the_longest_repetition_is_found(kinds: str, expected: tuple[int, int, int]) -> None:
    assert repetition(kinds) == expected


def deep(changes: dict[str, list[dict[str, Any]]] | None = None, **options: Any) -> TransformerConfig:
    """A model with overrides in some of its stacks."""
    config = config_of(positions="learned", kernel="plain", kv_heads=2, **options)
    return config.override({f"{name}.overrides": each for name, each in (changes or {}).items()})


WINDOW = {"layers": "::2", "block": {"mixer": {"window": 3}}}
LAST = {"layers": "-1", "block": {"ffn": {"kind": "none"}}}
MODELS = {
    "equal": deep(depth=6),
    "in turns, the last another": deep({"decoder": [WINDOW, LAST]}, depth=13),
    "experts": deep(depth=6, ffn="moe", shared=1),
    "both": deep({"decoder": [LAST]}, family="both", first=RecurrentConfig(), depth=7),
}
MEASURES: dict[str, Callable[[TransformerConfig], Any]] = {
    "states": lambda config: _states(config, TrainConfig(), "bf16"),
    "cache": lambda config: _cache_size(config, 2, 5, "fp32") if config.decoder else {},
    "kept": lambda config: {"bytes": _saved_bytes(config, 2, 5, "fp32")},
    "counted": lambda config: {"flops": count_pass(config, 2, 5, training=True)},
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("config", first(1, MODELS.values()), ids=MODELS)
def test_a_few_layers_say_what_all_would(config: TransformerConfig, measure: Any) -> None:
    short, left_out = shortened(config)
    assert left_out.keys() == config.stacks().keys()
    assert all(stack.depth < config.stacks()[name].depth for name, stack in short.stacks().items())
    assert measured(config, measure) == dict(measure(config))


RECURRENT = {
    "gru": config_of(first=RecurrentConfig(hidden=6), kernel="plain", depth=1),
    "beside attention": config_of(second=RecurrentConfig(cell="lstm"), kernel="plain"),
    "both": config_of(
        family="both", first=RecurrentConfig(cell="lstm", bias=False), kernel="plain", ffn="moe", depth=1
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "precision"), [("gru", "fp32"), ("beside attention", "fp32"), ("both", "bf16")])
def test_a_few_tokens_say_what_all_would(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent layer's cost grows by the same amount with each token, even where attention beside it skips blocks."""
    monkeypatch.setattr("heddle.nn.kernels.plain.BLOCK", 8)  # so that ten tokens are two blocks
    config = RECURRENT[name]
    for measure in (
        lambda some, tokens: {"bytes": _saved_bytes(some, 2, tokens, precision)},
        lambda some, tokens: {"flops": count_pass(some, 2, tokens, training=True)},
    ):
        assert stepped(config, 10, measure) == measure(config, 10)


@pytest.mark.thorough
def test_a_deep_model_is_accounted_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its passes together go through fewer layers than it has."""
    layers: list[Block] = []
    forward = Block.forward

    def noted(self: Block, *args: Any, **more: Any) -> Any:
        layers.append(self)
        return forward(self, *args, **more)

    monkeypatch.setattr(Block, "forward", noted)
    report = count(sized(100, vocab_size=100, dim=64), length=16)
    assert report.parameters.total > 100 * 12 * 64**2
    assert 0 < len(layers) < 100
