"""Values of a parameter that only `make test-all` tries."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """Each of these values, marked; a test of several parameters has a tuple for each value."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.thorough) for value in values
    ]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """All of these values, but the first `count` marked."""
    left = iter(values)
    return [*islice(left, count), *thorough(*left)]
