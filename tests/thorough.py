"""Values of a parameter that only `make test-all` tries."""

from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """Each of these values, marked; a test of several parameters has a tuple for each value."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.thorough) for value in values
    ]
