"""How much the results of equal runs differ: mean, standard deviation, and Student's interval."""

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from heddle.checks import SOME, at_least, checked
from heddle.display import displayed

CONFIDENCE = 0.95


@displayed()
class SeedStatistics(NamedTuple):
    """What runs that differ only in their seed say about a result.

    Attributes:
        runs: how many there are.
        mean: of their results.
        deviation: the standard deviation of one run, estimated from all (with n - 1); None for a single run.
        low: lower end of the interval that contains the mean over all seeds with 95 % confidence; None for a single run.
        high: its upper end.
    """

    runs: int
    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


@checked(results=SOME)
def seed_statistics(results: Sequence[float]) -> SeedStatistics:
    """The mean of results and how sure it is, if they are normally distributed (Student 1908)."""
    mean = fmean(results)
    if len(results) == 1:
        return SeedStatistics(1, mean)
    deviation = stdev(results)
    half = quantile(len(results) - 1) * deviation / sqrt(len(results))
    return SeedStatistics(len(results), mean, deviation, mean - half, mean + half)


@checked(freedom=at_least(1))
def quantile(freedom: int) -> float:
    """The number that the absolute value of Student's t with so many degrees of freedom exceeds in 5 % of cases."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < CONFIDENCE:
        high *= 2
    for _ in range(60):  # halvings, to the precision of a float
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, freedom) >= CONFIDENCE else (middle, high)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that |T| < t, in closed form (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (number - 1) / number
    total *= sin(angle)
    return 2 / pi * (angle + total) if odd else total
