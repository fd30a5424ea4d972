"""Random models out of every choice are blamed for nothing. That each builds, learns and counts: tests/laws/test_property.py.

HEDDLE_EXAMPLES=500 python -m pytest tests/prove/test_random.py      proves more of them than the usual run does
"""

import os

import pytest

from heddle.model import build
from heddle.prove import prove
from heddle.prove.subject import awaken
from tests.models import drawn
from tests.thorough import first


@pytest.mark.parametrize("seed", first(3, range(int(os.environ.get("HEDDLE_EXAMPLES", "8")))))
def test_no_sound_model_is_blamed(seed: int) -> None:
    verdicts = prove(awaken(build(drawn(seed), seed=seed), seed), seed=seed).verdicts
    assert [verdict for verdict in verdicts if not verdict.holds] == []
