"""Whatever hooks `forward` sees everything: training, scoring, prefill and each decoding step are one call of each module."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import nn

from heddle.config import ConvolutionConfig, RecurrentConfig, RMSNormConfig, TrainConfig
from heddle.config.decoding import SamplingConfig
from heddle.config.tasks import NextTokenConfig
from heddle.data.batch import next_token_batch
from heddle.data.corpus import Corpus, Part
from heddle.generate import generate
from heddle.model import Stack, Transformer, build
from heddle.nn.block import FEED_FORWARDS, MIXERS, Block
from heddle.nn.norm import LayerNorm, RMSNorm
from heddle.tasks import CrossEntropy, DataSpec, make_task
from heddle.train import Optimizer, evaluate, train_step
from tests.models import config_of, tokens_of

DECODERS: dict[str, dict[str, Any]] = {
    "attention": {"norm": RMSNormConfig(), "qk_norm": RMSNormConfig()},
    "parallel": {"wiring": "parallel"},
    "experts": {"window": 3, "ffn": "moe", "placement": "sandwich"},
    "convolution": {"first": ConvolutionConfig(), "placement": "post"},
    "recurrent": {"first": RecurrentConfig(), "ffn": "gated"},
}
WATCHED = (Transformer, Stack, Block, LayerNorm, RMSNorm, *MIXERS.values(), *FEED_FORWARDS.values())


@contextmanager
def fired(model: nn.Module) -> Iterator[Counter[str]]:
    """How often a forward hook of each module fires; the model itself is `model`."""
    counts: Counter[str] = Counter()
    watched = {name or "model": each for name, each in model.named_modules() if isinstance(each, WATCHED)}

    def note(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: counts.update([name])

    hooks = [module.register_forward_hook(note(name)) for name, module in watched.items()]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()
        counts.update(dict.fromkeys(watched, 0))


def once(counts: Counter[str], calls: int = 1) -> None:
    assert len(counts) > 5
    assert set(counts.values()) == {calls}, {name: number for name, number in counts.items() if number != calls}


@pytest.mark.parametrize("name", DECODERS)
def test_training_calls_each_module_once_a_micro_batch(name: str) -> None:
    model = build(config_of(**DECODERS[name])).train()
    objective, optimizer = CrossEntropy(model), Optimizer(model, TrainConfig(), 1e-3, "fp32")
    with fired(model) as counts:
        train_step(objective, optimizer, next_token_batch(tokens_of(4, 9).numpy()), 2, 1.0, 1.0)
    once(counts, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_scoring_calls_each_module_once_a_batch(name: str) -> None:
    model = build(config_of(**DECODERS[name]))
    corpus = Corpus(validation=Part(tokens_of(1, 25)[0].numpy(), 25, 1, 1))
    task = make_task(NextTokenConfig(), DataSpec(corpus, model.config, context=8))
    with fired(model) as counts:
        evaluate(model, task, rows=2)  # three windows: two at once, then one
    once(counts, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_prefill_and_each_decoding_step_call_each_module_once(name: str) -> None:
    model = build(config_of(**DECODERS[name])).eval()
    with fired(model) as counts:
        events = list(generate(model, [[1, 2, 3], [4]], SamplingConfig(temperature=0.0, max_tokens=5)))
    assert len(events) == 10
    once(counts, 5)


def test_an_encoder_is_called_in_a_caches_first_call_alone() -> None:
    model = build(config_of(family="both")).eval()
    cache, source = model.new_cache(2), tokens_of(2, 6)
    with fired(model) as counts:
        model(tokens_of(2, 3), source=source, cache=cache)
    once(counts)
    with fired(model) as counts:
        for _ in range(3):
            model(tokens_of(2, 1), cache=cache)
    calls = {name: number for name, number in counts.items() if name.startswith("encoder")}
    assert set(calls.values()) == {0}
    once(Counter({name: number for name, number in counts.items() if name not in calls}), 3)


def test_a_hook_changes_what_is_generated() -> None:
    """What a hook returns is computed with, in decoding as well."""
    model = build(config_of(**DECODERS["attention"])).eval()
    chosen = []
    for sign in (1, -1):
        hook = model.register_forward_hook(
            lambda module, inputs, output, s=sign: output._replace(hidden=s * output.hidden)
        )
        events = generate(model, [[1, 2, 3]], SamplingConfig(temperature=0.0, max_tokens=4))
        chosen.append([event.token for event in events])
        hook.remove()
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("name", ["encode", "decode", "run", "step"])
def test_nothing_else_computes(name: str) -> None:
    for module in build(config_of(family="both")).modules():
        assert not hasattr(module, name)
