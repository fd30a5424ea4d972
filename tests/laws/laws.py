"""heddle's own models put to the checks of `heddle.prove`: there is no other list of laws.

They run in float64, where rounding excuses nothing: what is allowed is 8 times a model's own error, which is about 1e-15 there.

Every pair of choices is in some model, and every law meets every choice: of many models, a law is tried on a share. What says the
same in two ways, such as a cache filled one by one and in chunks, is tried on every model in one of them.

HEDDLE_EVERY_LAW=1 python -m pytest tests/laws/test_laws.py      tries every law on every model
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from heddle.config import Config, TransformerConfig
from heddle.prove.checks import CHECKS
from heddle.prove.proof import run_check
from heddle.prove.subject import Subject
from heddle.prove.verdict import Verdict
from tests.models import awake, name_of

Test = Callable[..., Any]
# There are many models, and every pair of choices is in one of them. Texts of this length leave every window, reach past every
# convolution, and are packed and cut unevenly; the faults of test_planted.py are found at it.
LENGTH = 12
FEW = 12  # models, of which every law is tried on all


def holds(subject: Subject, law: str) -> Verdict:
    """The law was checked of this model and holds.

    Shapes are checked while the subject is made, by whole passes; in the small ones here, checking took two thirds of the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        verdict = run_check(law, CHECKS[law], subject)
    assert verdict.word in ("EXACT", "ROUNDING"), verdict
    return verdict


def survives(config: Config) -> None:
    """Writing and reading: from data, JSON and TOML it comes back equal."""
    kind = type(config)
    assert kind.of(config.to_dict()) == config
    assert kind.of(json.loads(config.to_json())) == config
    assert kind.of(tomllib.loads(config.to_toml())) == config
    assert config.override({}) == config


def subject_of(config: TransformerConfig, dtype: torch.dtype = torch.float64) -> Subject:
    """The model on trial, with weights at which every part matters, and the same texts for every law."""
    subject = _subject(config.to_json(), dtype)
    subject.generator.manual_seed(0)
    return subject


@cache
def _subject(config: str, dtype: torch.dtype) -> Subject:
    subject = Subject(awake(TransformerConfig.of(json.loads(config)), dtype))
    subject.length = LENGTH
    return subject


def of(*laws: str, models: Sequence[TransformerConfig]) -> Callable[[Test], Test]:
    """Run with each of these laws and its share of the models; the test says which rows of the lectures they settle."""
    assert len(models) > 1
    shares = max(2, len(laws))
    starts = range(shares) if len(laws) > 1 else [[*CHECKS].index(laws[0])]
    pairs = [(law, config) for law, start in zip(laws, starts, strict=False) for config in share(models, start, shares)]
    names = [f"{law}-{name_of(config)}" for law, config in pairs]
    return pytest.mark.parametrize(("law", "config"), pairs, ids=names)


def share(models: Sequence[TransformerConfig], start: int, shares: int) -> list[TransformerConfig]:
    """Each second, or third, of many models, and those of the others that have a choice which is in none of them."""
    if len(models) < FEW or "HEDDLE_EVERY_LAW" in os.environ:
        return [*models]
    has = [set(choices(config.to_dict())) for config in models]
    dealt = [number for number in range(len(models)) if number % shares == start % shares]
    missing = set().union(*has).difference(*(has[number] for number in dealt))
    while missing:
        dealt.append(max(range(len(models)), key=lambda number: len(missing & has[number])))
        missing -= has[dealt[-1]]
    return [models[number] for number in dealt]


def choices(part: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """What stands in each field of a config, by the names of the fields above it."""
    if isinstance(part, Mapping):
        for name, value in part.items():
            yield from choices(value, f"{place}.{name}")
    elif isinstance(part, list) and any(isinstance(each, Mapping) for each in part):
        for each in part:
            yield from choices(each, place)
    else:
        yield place, repr(part)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11, what: str = "") -> None:
    """All elements within a tolerance, which is absolute where values are of the order of 1 and grows with the largest."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 1.0
    tolerance *= max(1.0, largest)
    alike = actual.shape == expected.shape and actual.dtype == expected.dtype and actual.numel() > 0
    if alike and float((actual - expected).detach().abs().max()) <= tolerance:
        return  # `assert_close` says the same ten times as slowly; it names the place where there is a difference
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=lambda text: f"{what}: {text}")
