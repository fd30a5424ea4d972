"""What heddle says where it refuses something."""

from collections.abc import Callable

import pytest

from heddle.errors import HeddleError


def refusal(call: Callable[[], object]) -> str:
    """The one line of the refusal."""
    with pytest.raises(HeddleError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    return line
