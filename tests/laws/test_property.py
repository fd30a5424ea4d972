"""The cross product of all choices: what validates works, wholly; what cannot work is refused when it is made, with a reason.

HEDDLE_EXAMPLES=5000 python -m pytest tests/laws/test_property.py      looks further than the usual run does
"""

import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from heddle.account import count, parameters, render
from heddle.config import Config, Override, SavedConfig, TransformerConfig
from heddle.model import Transformer, build
from heddle.model.head import LanguageHead
from heddle.nn import Layout
from heddle.prove.checks import CHECKS
from heddle.prove.proof import run_check
from heddle.prove.subject import Subject, awaken
from tests import models
from tests.laws.laws import survives
from tests.laws.numbers import numbers_of

EXAMPLES = int(os.environ.get("HEDDLE_EXAMPLES", "40"))
LENGTH = 9
LENGTHS = (LENGTH, 4, 1)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Plain data of a model, possible or not."""
    try:
        return models.model_of(lambda options: draw(st.sampled_from(options)))
    except models.Stuck:
        reject()


@pytest.mark.thorough
def test_nothing_is_forgotten() -> None:
    """Every option of every class occurs in some model that validates, and no row of values is left over.

    What has not been met is drawn more often, so that a few hundred models are enough.
    """
    fields = [(cls, name) for cls in models.classes() for name in cls.model_fields]
    fields = [(cls, name) for cls, name in fields if f"{cls.__name__}.{name}" not in models.SPECIAL]
    expected = {(cls.__name__, name, word(option)) for cls, name in fields for option in models.options(cls, name)}
    met: set[tuple[str, str, str]] = set()
    for seed in range(400):
        met |= set(chosen(models.validated(towards(expected - met, fields, random.Random(seed)))))
        if expected <= met:
            break
    assert expected <= met, sorted(expected - met)
    kinds: list[type[Any]] = [*models.classes(), Override]
    known = {f"{cls.__name__}.{name}" for cls in kinds for name in cls.model_fields}
    assert models.VALUES.keys() <= known


def word(option: Any) -> str:
    return option.__name__ if isinstance(option, type) else repr(option)


def towards(
    missing: set[tuple[str, str, str]], fields: list[tuple[type[Any], str]], draw: random.Random
) -> models.Pick:
    """Picks what is missing, or leads to it, every other time; in every other model, else what is simplest."""
    leading: dict[int, list[Any]] = {}  # by the list that is picked from, which stays the same
    classes: set[str] = set()
    for cls, name in reversed(fields):  # parts stand behind what they are in
        named = [(word(option), option) for option in models.weighted(cls, name)]
        steps = [option for each, option in named if each in classes or (cls.__name__, name, each) in missing]
        leading[id(models.weighted(cls, name))] = steps
        classes |= {cls.__name__} if steps else set()
    simple = draw.choice((0.0, 0.5))

    def pick(options: Sequence[Any]) -> Any:
        steps = leading.get(id(options))
        if steps and draw.random() < 0.5:
            return draw.choice(steps)
        if draw.random() < simple:
            return None if None in options else options[0]
        return draw.choice(options)

    return pick


def test_a_number_that_nobody_draws_is_noticed() -> None:
    class Later(Config):
        width: int = 3

    with pytest.raises(LookupError, match=r"^Later\.width takes <class 'int'>"):
        models.options(Later, "width")


def chosen(config: Config) -> Iterator[tuple[str, str, str]]:
    """Every choice in a config, overrides included, by class, field and option."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield type(config).__name__, name, type(value).__name__
            yield from chosen(value)
        else:
            yield type(config).__name__, name, repr(value)
        for each in value if name == "overrides" else ():
            yield from chosen(each)
    for block in getattr(config, "blocks", ()):
        yield from chosen(block)


@pytest.mark.thorough
@given(tables())
@settings(max_examples=EXAMPLES)
def test_what_validates_works_and_what_cannot_is_refused(table: dict[str, Any]) -> None:
    reason = models.refusal(TransformerConfig, table)
    if reason:
        assert reason.isprintable()
        assert any(name in reason for cls in models.classes() for name in cls.model_fields), reason
    else:
        config = TransformerConfig.of(table)
        survives(config)
        survives(SavedConfig(model=config))
        learns_and_counts(config)
        predicts_what_was_trained(config)


@pytest.mark.thorough
@given(tables())
@settings(max_examples=EXAMPLES // 20, suppress_health_check=list(HealthCheck))
def test_what_validates_is_accounted_for(table: dict[str, Any]) -> None:
    """Parameters, FLOPs and memory of whatever there is, as data and as text. Slower than all the rest, so of fewer models."""
    assume(not models.refusal(TransformerConfig, table))
    report = count(TransformerConfig.of(table), 2, LENGTH)
    assert sum(report.flops.parts.values()) == report.flops.forward > 0
    assert json.dumps(report.to_dict())
    assert list(render(report))


def learns_and_counts(config: TransformerConfig) -> None:
    """Its parameters are as many as the accounts say; a training step has a finite loss and a finite gradient for every weight."""
    model = build(config)
    assert not list(model.buffers())
    counts = parameters(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert counts.total == sum(counts.parts.values()) == sum(counts.groups.values()) == total == numbers_of(config)
    assert 0 < counts.active <= total
    model.train()
    layout = Layout.padded(LENGTHS, LENGTH)
    hidden, routings = model(*read(model, layout))
    loss = sum((routing.terms for routing in routings), scored(model, hidden, layout).square().mean())
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None or ".experts." in name, f"{name} has no part in the loss"
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


def read(model: Transformer, layout: Layout, seed: int = 1) -> tuple[Tensor, Layout, Tensor | None, Layout | None]:
    """What a model is given: tokens, and beside two stacks a source."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    tokens = torch.randint(config.vocab_size, layout.position.shape, generator=generator)
    if len(config.stacks()) == 1:
        return tokens, layout, None, None
    source = torch.randint(config.source_vocab_size or config.vocab_size, (layout.rows, 6), generator=generator)
    return tokens, layout, source, Layout.padded((6, 3, 1)[: layout.rows], 6)


def scored(model: Transformer, hidden: Tensor, layout: Layout) -> Tensor:
    """What comes out of the head, whatever kind it is; of a vocabulary the real entries."""
    if isinstance(model.head, LanguageHead):
        return model.logits(hidden)[..., : model.config.vocab_size]
    return hidden if model.head is None else model.head(hidden, layout, model.embedding.weight)


def predicts_what_was_trained(config: TransformerConfig) -> None:
    """The quick laws, in double precision and in single."""
    for dtype in (torch.float64, torch.float32):
        subject = Subject(awaken(build(config, dtype=dtype)))
        for law in ("padding on the right", "padding on the left", "prefix", "causality", "cached in chunks"):
            verdict = run_check(law, CHECKS[law], subject)
            assert verdict.holds, verdict
        assert subject.bounds["output"] < 0.01, "float32 is of no use to it"
