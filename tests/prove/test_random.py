"""Random models out of every choice are blamed for nothing. That each builds, learns and counts: tests/laws/test_property.py."""

from tests.prove.draws import alarms


def test_no_sound_model_is_blamed() -> None:
    """A few here; the module's command proves hundreds."""
    assert list(alarms(8)) == []
