"""The models that are counted."""

import pytest

from heddle.config import TransformerConfig
from tests.models import drawn, name_of


def of_configs(*choices: TransformerConfig | int) -> pytest.MarkDecorator:
    """Run with each of these configs, and with the random one of each of these seeds."""
    names = [f"drawn {each}" if isinstance(each, int) else name_of(each) for each in choices]
    return pytest.mark.parametrize("config", choices, ids=names, indirect=True)


@pytest.fixture
def config(request: pytest.FixtureRequest) -> TransformerConfig:
    """A config as it is, or drawn from a seed once a test needs it: drawing takes a tenth of a second."""
    choice: TransformerConfig | int = request.param
    return drawn(choice) if isinstance(choice, int) else choice
