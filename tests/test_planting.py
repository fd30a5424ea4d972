"""The planted faults are up to date: places that the source has, tests and checks that exist. Planting them all takes minutes."""

import re
from pathlib import Path

import pytest

from heddle.prove.checks import CHECKS
from heddle.prove.laws import LAWS
from tests.planting import TESTS, Fault, PlaceError, collect, misplaced
from tests.prove.tasks import RUNS
from tests.toys import STEPS, TOYS

ROOT = Path(__file__).parents[1]
FAULTS = collect()
CODE = '''"""Text of `first`."""
LIMITS = {"a": 1, "b": 2}


class Loom:
    width: int = 3

    @property
    def first(self) -> int:
        """The text: weft + 1."""
        weft = self.width  # weft + 1
        return max(
            weft + 1,
            self.width,
        )

    def second(self) -> int:
        weft = 2
        if weft <= 2:
            weft = weft + 1
        return weft + 1
'''


def test_every_fault_can_be_planted() -> None:
    assert misplaced(FAULTS) == []
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.toy for fault in FAULTS} - {""} == TOYS.keys()
    assert {fault.steps for fault in FAULTS} - {""} == STEPS.keys()
    for fault in FAULTS:
        assert fault.old != fault.new, fault.name
        assert bool(fault.toy) == bool(fault.check), fault.name
        assert bool(fault.run) == bool(fault.law), fault.name
        assert fault.check or fault.test, fault.name


def test_pages_state_their_number() -> None:
    for page, phrase in (("README.md", r"(\d+)\s+mistakes"), ("docs/evidence/faults.md", r"to (\d+) faults")):
        (number,) = re.findall(phrase, (ROOT / page).read_text(encoding="utf-8"))
        assert int(number) == len(FAULTS), page


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


@pytest.mark.parametrize(
    ("place", "old", "line"),
    [
        ("Loom.first", "max(weft + 1, self.width)", "        return NEW"),  # however it is wrapped
        ("Loom.first", "weft + 1", "            NEW,"),  # neither the docstring nor the comment
        ("Loom.second", "<= 2", "        if weft NEW:"),
        ("Loom.second", "= weft + 1", "            weft NEW"),
        ("Loom.width", "3", "    width: int = NEW"),
        ("LIMITS", '"b": 2', 'LIMITS = {"a": 1, NEW}'),
        ("", "def second", "    NEW(self) -> int:"),
    ],
)
def test_a_fragment_is_changed_in_its_place(place: str, old: str, line: str) -> None:
    planted = Fault("loose", f"loom.py:{place}" if place else "loom.py", old, "NEW").plant(CODE)
    assert line in planted.splitlines()
    assert planted.count("NEW") == 1


def test_further_lines_are_indented_like_the_first() -> None:
    planted = Fault("loose", "loom.py:Loom.second", "weft = weft + 1", "pass\nif True:\n    pass").plant(CODE)
    assert "            pass\n            if True:\n                pass\n        return weft + 1" in planted


@pytest.mark.parametrize(
    ("place", "old", "reason"),
    [
        ("Loom.third", "weft", "heddle/loom.py has no Loom.third"),
        ("Loom.second", "weft + 1", "heddle/loom.py:Loom.second has 'weft + 1' 2 times"),
        ("Loom.first", "wef", "heddle/loom.py:Loom.first has 'wef' 0 times"),
        ("Loom.first", "The text", "heddle/loom.py:Loom.first has 'The text' 0 times"),
        ("Loom.first", "weft = 2", "heddle/loom.py:Loom.first has 'weft = 2' 0 times"),
    ],
)
def test_a_fragment_that_is_not_there_once_is_named(place: str, old: str, reason: str) -> None:
    fault = Fault("loose", f"loom.py:{place}", old, "NEW")
    with pytest.raises(PlaceError, match=re.escape(f"loose: {reason}")):
        fault.plant(CODE)


def test_all_faults_that_cannot_be_planted_are_named_at_once() -> None:
    gone = [Fault(name, "nn/mask.py:Window.nothing", "x", "y") for name in ("first", "second")]
    assert misplaced([FAULTS[0], *gone]) == [
        f"{name}: heddle/nn/mask.py has no Window.nothing" for name in ("first", "second")
    ]
