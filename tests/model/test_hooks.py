"""Whatever hooks `forward` sees everything: training, scoring, prefill and each decoding step are one call of each module."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.config import TrainConfig, TransformerConfig
from heddle.config.run import NextTokenConfig
from heddle.config.sampling import SamplingConfig
from heddle.data.batch import next_token_batch
from heddle.data.store import Corpus, Part
from heddle.generate import generate
from heddle.model import Stack, Transformer, build
from heddle.nn.block import FEED_FORWARDS, MIXERS, Block
from heddle.nn.norm import LayerNorm, RMSNorm
from heddle.train import NextToken, Optimizer, Reading, evaluate, make_task, train_step

ATTENTION = {"kind": "attention", "heads": 2, "relative": {"kind": "rotary"}, "qk_norm": {"kind": "rms"}}
MOE = {"kind": "moe", "experts": 3, "active": 1, "expert": {"kind": "gated", "hidden": 8}}
CROSS = {"cross": {"kind": "attention", "heads": 2}}
BASE: dict[str, Any] = {"vocab_size": 31, "dim": 16, "context": 16}
DECODERS = {
    "attention": {"mixer": ATTENTION, "norm": {"kind": "rms"}},
    "parallel": {"mixer": ATTENTION, "wiring": "parallel"},
    "experts": {"mixer": {**ATTENTION, "window": 3}, "ffn": MOE, "placement": "sandwich"},
    "convolution": {"mixer": {"kind": "convolution"}, "placement": "post"},
    "recurrent": {"mixer": {"kind": "recurrent"}, "ffn": {"kind": "gated"}},
}
WATCHED = (Transformer, Stack, Block, LayerNorm, RMSNorm, *MIXERS.values(), *FEED_FORWARDS.values())


def decoder(block: dict[str, Any]) -> Transformer:
    return build(TransformerConfig.of({**BASE, "decoder": {"depth": 2, "block": block}}))


def both() -> Transformer:
    stacks = {
        "encoder": {"depth": 2, "block": {"mixer": {"kind": "attention", "heads": 2}}},
        "decoder": {"depth": 2, "block": {"mixer": ATTENTION, **CROSS}},
    }
    return build(TransformerConfig.of({**BASE, **stacks}))


@contextmanager
def fired(model: nn.Module) -> Iterator[Counter[str]]:
    """How often a forward hook of each module fires; the model itself is `model`."""
    found: Counter[str] = Counter()
    watched = {name or "model": each for name, each in model.named_modules() if isinstance(each, WATCHED)}

    def note(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: found.update([name])

    hooks = [module.register_forward_hook(note(name)) for name, module in watched.items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        found.update(dict.fromkeys(watched, 0))


def once(found: Counter[str], calls: int = 1) -> None:
    assert len(found) > 5
    assert set(found.values()) == {calls}, {name: number for name, number in found.items() if number != calls}


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", DECODERS)
def test_training_calls_each_module_once_a_micro_batch(name: str) -> None:
    model = decoder(DECODERS[name]).train()
    objective, optimizer = NextToken(model), Optimizer(model, TrainConfig(), 1e-3, "fp32")
    with fired(model) as found:
        train_step(objective, optimizer, next_token_batch(ids(4, 9).numpy()), 2, 1.0, 1.0)
    once(found, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_scoring_calls_each_module_once_a_batch(name: str) -> None:
    model = decoder(DECODERS[name])
    corpus = Corpus(validation=Part(ids(1, 25)[0].numpy(), 25, 1, 1))
    task = make_task(NextTokenConfig(), Reading(corpus, model.config, context=8))
    with fired(model) as found:
        evaluate(model, task, rows=2)  # three windows: two at once, then one
    once(found, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_and_each_decoding_step_call_each_module_once(name: str) -> None:
    model = decoder(DECODERS[name]).eval()
    with fired(model) as found:
        events = list(generate(model, [[1, 2, 3], [4]], SamplingConfig(temperature=0.0, max_tokens=5)))
    assert len(events) == 10
    once(found, 5)


def test_an_encoder_is_called_in_a_caches_first_call_alone() -> None:
    model = both().eval()
    cache, source = model.new_cache(2), ids(2, 6)
    with fired(model) as found:
        model(ids(2, 3), source=source, cache=cache)
    once(found)
    with fired(model) as found:
        for _ in range(3):
            model(ids(2, 1), cache=cache)
    calls = {name: number for name, number in found.items() if name.startswith("encoder")}
    assert set(calls.values()) == {0}
    once(Counter({name: number for name, number in found.items() if name not in calls}), 3)


def test_a_hook_changes_what_is_generated() -> None:
    """What a hook returns is computed with, in decoding as well."""
    model = decoder(DECODERS["attention"]).eval()
    chosen = []
    for sign in (1, -1):
        hook = model.register_forward_hook(
            lambda module, given, output, s=sign: output._replace(hidden=s * output.hidden)
        )
        events = generate(model, [[1, 2, 3]], SamplingConfig(temperature=0.0, max_tokens=4))
        chosen.append([event.token for event in events])
        hook.remove()
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("name", ["encode", "decode", "run", "step"])
def test_nothing_else_computes(name: str) -> None:
    for module in both().modules():
        assert not hasattr(module, name)
