"""The outcome of a check: exact, rounding or different, and the first layer that differs."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from heddle.display import displayed

Word = Literal["EXACT", "ROUNDING", "DIFFERENT", "NOT CHECKED"]
Trace = dict[str, Tensor]
"""Results of a pass by place: `entry`, `layer 0`, …, `output`; limited to the compared tokens."""

ALLOWED = 8  # times the model's rounding error
CEILING = 1e-3  # relative to the largest number at a place; more rounding than this could hide a bug


class NotApplicable(Exception):
    """A check does not apply to this model; the message says why."""


@displayed()
@dataclass(frozen=True)
class Comparison:
    """Two passes that should agree.

    Attributes:
        case: description of this comparison.
        actual: the tested results.
        expected: the reference results.
        exact: require bitwise equality, without any rounding.
        min_scale: differences are relative to the largest number at a place, or to this if it is larger.
        rounding: relative rounding error measured for this comparison; None: that of the place.
    """

    case: str
    actual: Trace
    expected: Trace
    exact: bool = False
    min_scale: float = 1e-30
    rounding: float | None = None


def expect_none(case: str, count: int) -> Comparison:
    """A count that should be 0; the error is the count."""
    actual, expected = ({"count": torch.tensor([number])} for number in (count, 0))
    return Comparison(f"{case}: {count:,}", actual, expected, exact=True, min_scale=1.0)


@displayed(".detail")
@dataclass(frozen=True)
class Verdict:
    """The outcome of one check.

    Attributes:
        check: name of the check.
        word: `EXACT` bit for bit, `ROUNDING` within 8 times the model's fp32 error and at most 1e-3, `DIFFERENT`
            otherwise.
        error: the largest difference, relative to the scale of the place.
        bound: the allowed error.
        layer: the first place that differs, or empty.
        detail: the failed case, or why nothing was checked.
    """

    check: str
    word: Word
    error: float = 0.0
    bound: float = 0.0
    layer: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the check did not fail."""
        return self.word != "DIFFERENT"

    def to_dict(self) -> dict[str, Any]:
        """JSON data; infinite errors and bounds are null."""
        return {**asdict(self), "error": finite_or_none(self.error), "bound": finite_or_none(self.bound)}


def finite_or_none(value: float) -> float | None:
    """The number, or None if it is infinite or NaN, which JSON lacks."""
    return value if isfinite(value) else None


def judge(
    check: str,
    comparisons: Iterable[Comparison],
    bounds: Mapping[str, float],
    scales: Mapping[str, float] | None = None,
) -> Verdict:
    """The verdict of the worst comparison, or of the first failed one, with the first place that differs.

    Args:
        check: name of the check.
        comparisons: consumed one at a time, up to the first failure.
        bounds: the model's relative rounding error, by place.
        scales: a typical largest number, by place: a few compared numbers may all happen to be small.
    """
    worst = Verdict(check, "EXACT")
    for comparison in comparisons:
        for place, expected in comparison.expected.items():
            actual = comparison.actual[place]
            if actual.shape != expected.shape:
                return Verdict(check, "DIFFERENT", float("inf"), 0.0, place, f"{comparison.case}: shapes differ")
            if torch.equal(actual, expected):
                continue
            largest = float(expected.abs().nan_to_num(posinf=0.0).max())  # -inf from masks is not a scale
            scale = max(largest, (scales or {}).get(place, 0.0), comparison.min_scale)
            difference = (actual.double() - expected.double()).abs().masked_fill(actual == expected, 0.0)
            error = float(difference.nan_to_num(nan=inf, posinf=inf).max()) / scale
            rounding = bounds.get(place, bounds["output"]) if comparison.rounding is None else comparison.rounding
            bound = 0.0 if comparison.exact else min(ALLOWED * rounding, CEILING)
            if not error <= bound:
                note = (
                    ""
                    if ALLOWED * rounding <= CEILING
                    else f"; the model's rounding error, {rounding:.0e}, is too large for a verdict"
                )
                return Verdict(check, "DIFFERENT", error, bound, place, comparison.case + note)
            if error >= worst.error:
                worst = Verdict(check, "ROUNDING", error, bound, "", "")
    return worst
