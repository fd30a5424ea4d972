"""The run and the config of `tests/convert`."""

from tests.convert.conftest import run as run
from tests.convert.conftest import tiny as tiny
