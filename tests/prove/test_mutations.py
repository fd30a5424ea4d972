"""The lists of planted faults are up to date: lines that the source has, tests that exist. Planting them takes minutes."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    """`benchmarks/mutations.py`, which imports nothing but the standard library until it works."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def test_every_fault_can_be_planted(mutations: ModuleType) -> None:
    mutations.check_lines([*mutations.FAULTS, *mutations.SLIPS])
    for fault in (*mutations.FAULTS, *mutations.SLIPS):
        assert fault.old != fault.new, fault.name
    assert {fault.toy for fault in mutations.FAULTS} == mutations.TOYS.keys()
    assert {slip.steps for slip in mutations.SLIPS} == mutations.STEPS.keys()
    for faults in (mutations.FAULTS, mutations.SLIPS):
        assert len({fault.name for fault in faults}) == len(faults)


def test_every_named_test_is_there(mutations: ModuleType) -> None:
    for slip in mutations.SLIPS:
        file, name = slip.test.split("::")
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), slip.test


def test_a_line_that_is_gone_is_named_before_anything_is_done(mutations: ModuleType) -> None:
    gone = replace(mutations.SLIPS[0], old="no such line")
    with pytest.raises(SystemExit, match=rf"{gone.name}: heddle/{gone.file} no longer has 'no such line'"):
        mutations.check_lines([mutations.FAULTS[0], gone])
