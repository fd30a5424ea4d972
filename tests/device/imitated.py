"""Tests on the imitated GPU run in a process that has loaded the guard before torch."""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from tests import programs
from tests.device.guard import missing


def imitated(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs in a fork of `tests/device/server.py`, and is skipped where a GPU cannot be imitated.

    Its arguments are parameters that JSON can hold.
    """

    @wraps(test)
    def outside(**arguments: Any) -> None:
        if reason := missing():
            pytest.skip(reason)
        words = test.__module__, test.__name__
        programs.forked("device.server", "device.call", *words, stdin=json.dumps(arguments))

    return outside
