"""The list of planted faults is up to date: lines that the source has, tests and checks that exist. Planting them takes minutes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import mutations
from benchmarks.faults import FAULTS, STEPS, TOYS
from heddle.prove.checks import CHECKS
from heddle.prove.laws import LAWS

from .tasks import RUNS

TESTS = Path(__file__).parents[1]


def test_every_fault_can_be_planted() -> None:
    mutations.check_lines(FAULTS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.toy for fault in FAULTS} - {""} == TOYS.keys()
    assert {fault.steps for fault in FAULTS} - {""} == STEPS.keys()
    for fault in FAULTS:
        assert fault.old != fault.new, fault.name
        assert bool(fault.toy) == bool(fault.check), fault.name
        assert bool(fault.run) == bool(fault.law), fault.name
        assert fault.check or fault.test, fault.name


def test_whoever_must_notice_exists() -> None:
    for fault in FAULTS:
        assert fault.check in (*CHECKS, "parity", ""), fault.name
        assert fault.law in (*LAWS, ""), fault.name
        assert fault.run in (*RUNS, ""), fault.name
        if fault.test:
            file, _, name = fault.test.partition("::")
            assert re.search(rf"^def {name or 'test_'}", (TESTS / file).read_text(), re.MULTILINE), fault.test


def test_every_check_of_a_proof_notices_some_fault() -> None:
    assert CHECKS.keys() <= {fault.check for fault in FAULTS}
    assert LAWS.keys() <= {fault.law for fault in FAULTS}


def test_a_line_that_is_gone_is_named_before_anything_is_done() -> None:
    gone = replace(FAULTS[0], old="no such line")
    with pytest.raises(SystemExit, match=rf"{gone.name}: heddle/{gone.file} no longer has 'no such line'"):
        mutations.check_lines([FAULTS[1], gone])
