"""The laws can fail: each planted fault that a check of `prove` must notice is noticed by that check.

Here the changed functions take the place of the sound ones in this process. `python -m benchmarks.mutations` plants every fault of
the list in a copy of heddle, those in module tables included, and tries trained toys, parity and tests, too.
"""

from functools import cache

import pytest

from heddle.config import TransformerConfig
from heddle.model import build
from heddle.prove.checks import CHECKS
from heddle.prove.proof import run_check
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import Verdict
from tests.laws.laws import LENGTH
from tests.planting import Fault, changed_functions, collect, planted
from tests.thorough import first
from tests.toys import TOYS


@cache
def tried(toy: str, check: str) -> Verdict:
    return run_check(check, CHECKS[check], subject_of(toy))


def subject_of(toy: str) -> Subject:
    subject = Subject(awaken(build(TransformerConfig.of(TOYS[toy]), seed=1), 1))
    subject.length = LENGTH
    return subject


QUICK = [fault for fault in collect() if fault.check not in ("", "parity") and changed_functions(fault)]


@pytest.mark.parametrize("fault", first(15, QUICK), ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    assert tried(fault.toy, fault.check).word in ("EXACT", "ROUNDING")
    with planted(fault):
        try:
            subject = subject_of(fault.toy)
        except Exception:  # it cannot run at all, which `prove` says as well
            return
        verdict = run_check(fault.check, CHECKS[fault.check], subject)
    assert verdict.word == "DIFFERENT", verdict


def test_nearly_all_of_them_are_tried() -> None:
    assert len(QUICK) >= 55
