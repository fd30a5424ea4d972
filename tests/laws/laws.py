"""heddle's own models put to the checks of `heddle.prove`: there is no other list of laws.

They run in float64, where rounding excuses nothing: what is allowed is 8 times a model's own error, which is about 1e-15 there.
"""

import json
import tomllib
from collections.abc import Callable, Sequence
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
    """Run with each of these laws and models; the test says which rows of the lectures they settle."""

    def marked(test: Test) -> Test:
        named = pytest.mark.parametrize("law", laws)(test)
        return pytest.mark.parametrize("config", models, ids=name_of)(named)

    assert len(models) > 1
    return marked


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11, what: str = "") -> None:
    """All elements within a tolerance, which is absolute where values are of the order of 1 and grows with the largest."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 1.0
    tolerance *= max(1.0, largest)
    alike = actual.shape == expected.shape and actual.dtype == expected.dtype and actual.numel() > 0
    if alike and float((actual - expected).detach().abs().max()) <= tolerance:
        return  # `assert_close` says the same ten times as slowly; it names the place where there is a difference
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=lambda text: f"{what}: {text}")
