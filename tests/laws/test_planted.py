"""The laws can fail: each planted fault that a check of `prove` must notice is noticed by that check.

Here the changed functions take the place of the sound ones in this process. `python -m benchmarks.mutations` plants every fault of
the list in a copy of heddle, those in module tables included, and tries trained toys, parity and tests, too.
"""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import heddle
from benchmarks.faults import FAULTS, TOYS, Fault
from heddle.config import TransformerConfig
from heddle.model import build
from heddle.prove.checks import CHECKS
from heddle.prove.proof import run_check
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import Verdict
from tests.laws.laws import LENGTH

SOURCE = Path(heddle.__file__).parent


def functions_of(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module or class, by their qualified names; what is inside a function belongs to it."""
    found = {}
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_flags & inspect.CO_NEWLOCALS:
            found[each.co_qualname] = each
        elif isinstance(each, CodeType):
            found |= functions_of(each)
    return found


def changed(fault: Fault) -> dict[str, CodeType]:
    """The functions that the fault changes, as they become; empty where it changes a table."""
    text = (SOURCE / fault.file).read_text()
    wrong = text.replace(fault.old, fault.new, 1)
    sound, broken = (functions_of(compile(each, fault.file, "exec", dont_inherit=True)) for each in (text, wrong))
    return {name: code for name, code in broken.items() if told(sound[name]) != told(code)}


def told(code: CodeType) -> tuple[Any, ...]:
    """A function's code apart from its instructions and its line numbers."""
    return code.co_code, code.co_names, *(told(each) if isinstance(each, CodeType) else each for each in code.co_consts)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """With the changed functions in place of the sound ones, wherever they have been imported to."""
    module: Any = importlib.import_module("heddle." + fault.file.removesuffix(".py").replace("/", "."))
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for name, code in changed(fault).items():
            function: Any = module
            for part in name.split("."):
                function = inspect.getattr_static(function, part)
                function = getattr(function, "__func__", function)  # a static or class method
            function = inspect.unwrap(function.fget if isinstance(function, property) else function)
            before.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


@cache
def tried(toy: str, check: str) -> Verdict:
    return run_check(check, CHECKS[check], subject_of(toy))


def subject_of(toy: str) -> Subject:
    subject = Subject(awaken(build(TransformerConfig.of(TOYS[toy]), seed=1), 1))
    subject.length = LENGTH
    return subject


QUICK = [fault for fault in FAULTS if fault.check not in ("", "parity") and changed(fault)]


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
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
