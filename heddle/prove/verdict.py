"""What a check says: exact, rounding, or different, and from which layer on."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from heddle.display import displayed

Word = Literal["EXACT", "ROUNDING", "DIFFERENT", "NOT CHECKED"]
Trace = dict[str, Tensor]
"""What a pass computed, by place: `entry`, `layer 0`, …, `output`; all cut to the tokens that are compared."""

ALLOWED = 8  # times the model's own rounding error
CEILING = 1e-3  # of the largest number at a place: a model that rounds more than that could hide anything behind it


class NotApplicable(Exception):
    """Why a check has nothing to look at in this model."""


@displayed()
@dataclass(frozen=True)
class Comparison:
    """Two passes that should give the same.

    Attributes:
        what: which case of the check this is.
        found: the one that is doubted.
        wanted: what it should be.
        exactly: whether rounding would already be wrong, since not one number may take another way.
        least: differences are relative to the largest number at a place, or to this if it is larger.
        rounding: the relative rounding error, where it was measured for these numbers alone; None: the place's.
    """

    what: str
    found: Trace
    wanted: Trace
    exactly: bool = False
    least: float = 1e-30
    rounding: float | None = None


@displayed(".detail")
@dataclass(frozen=True)
class Verdict:
    """The outcome of one check.

    Attributes:
        check: its name.
        word: `EXACT` bit for bit, `ROUNDING` within 8 times the model's own error in fp32 and at most 1e-3, `DIFFERENT`
            otherwise.
        error: the largest difference found, relative to the largest number at that place, here or usually.
        bound: what rounding may explain there.
        layer: the first place that differs, or empty.
        detail: which case failed, or why nothing was checked.
    """

    check: str
    word: Word
    error: float = 0.0
    bound: float = 0.0
    layer: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return self.word != "DIFFERENT"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; an error or a bound without a size is null there."""
        return {**asdict(self), "error": number(self.error), "bound": number(self.bound)}


def number(value: float) -> float | None:
    """A number as JSON has it, which knows neither infinity nor nan."""
    return value if isfinite(value) else None


def judge(
    check: str,
    comparisons: Iterable[Comparison],
    bounds: Mapping[str, float],
    scales: Mapping[str, float] | None = None,
) -> Verdict:
    """The worst of all comparisons of a check; of a failed one, the first place that differs.

    Args:
        check: its name.
        comparisons: what it compared; none is asked for after one that failed, and none is kept.
        bounds: by place, the model's own relative rounding error.
        scales: by place, a usual largest number: a few numbers may all happen to be small, and round no less for it.
    """
    worst = Verdict(check, "EXACT")
    for each in comparisons:
        for place, wanted in each.wanted.items():
            found = each.found[place]
            if found.shape != wanted.shape:
                return Verdict(check, "DIFFERENT", float("inf"), 0.0, place, f"{each.what}: shapes differ")
            if torch.equal(found, wanted):
                continue
            largest = float(wanted.abs().nan_to_num(posinf=0.0).max())  # what is -inf on purpose is no measure
            scale = max(largest, (scales or {}).get(place, 0.0), each.least)
            apart = (found.double() - wanted.double()).abs().masked_fill(found == wanted, 0.0)
            error = float(apart.nan_to_num(nan=inf, posinf=inf).max()) / scale
            rounding = bounds.get(place, bounds["output"]) if each.rounding is None else each.rounding
            bound = 0.0 if each.exactly else min(ALLOWED * rounding, CEILING)
            if not error <= bound:
                more = (
                    "" if ALLOWED * rounding <= CEILING else f"; its own rounding, {rounding:.0e}, is too large to tell"
                )
                return Verdict(check, "DIFFERENT", error, bound, place, each.what + more)
            if error >= worst.error:
                worst = Verdict(check, "ROUNDING", error, bound, "", "")
    return worst
