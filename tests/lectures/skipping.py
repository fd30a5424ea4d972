"""A suite that a test collects in a folder of its own: tests that settle a row and do not run, and others that may be skipped."""

import pytest


@pytest.mark.lecture("L0-01")
def test_settles():
    pytest.skip("no time")


@pytest.mark.lecture("L0-01")
@pytest.mark.xfail(reason="not yet")
def test_expected_to_fail():
    raise AssertionError


@pytest.mark.lecture("L0-01")
@pytest.mark.skipif(True, reason="no machine")
def test_never_set_up(): ...


@pytest.mark.lecture("L0-01")
def test_runs(): ...


def test_settles_nothing():
    pytest.skip("may be skipped")
