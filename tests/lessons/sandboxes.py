"""The process that grades files, started once for all tests of a package: importing torch takes longer than most of them."""

from collections.abc import Iterator

import pytest

from heddle.lessons.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """As `heddle.lessons.grade` starts one."""
    with Sandbox() as started:
        yield started
