"""What the tests are is the same at any time, on any machine, in any process: workers that share them must agree."""

import os
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What differs between two processes and must not show: the order of sets, the zone of the clock, what the machine has.
CHANGED = {"TZ": "Asia/Tokyo", "ATEN_CPU_CAPABILITY": "default", "HOME": os.devnull, "COLUMNS": "77"}


def collecting(seed: str, *where: str, **changed: str) -> subprocess.Popen[str]:
    """A process that prints the ids of all tests. What is only for running them is left out, since it takes half the time."""
    options = ["--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider"]
    environment = {**os.environ, **changed, "PYTHONHASHSEED": seed, "HEDDLE_CHECKED": ""}
    call = [sys.executable, "-m", "pytest", *options, *where]
    return subprocess.Popen(
        call, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ids(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate()
    assert process.returncode == 0, said[-2000:]
    return [line for line in said.splitlines() if "::" in line]


def file_of(name: str) -> str:
    return name.split("::")[0]


def differences(first: list[str], second: list[str]) -> list[str]:
    return [f"{one!r} and then {other!r}" for one, other in zip_longest(first, second) if one != other]


def test_two_collections_agree(request: pytest.FixtureRequest) -> None:
    """This process has collected the tests already; if it was asked for some of them by name, another one does it too."""
    asked = request.config.invocation_params.args
    by_name = any("::" in word or word.startswith("-k") for word in map(str, asked))
    files = {file_of(item.nodeid) for item in request.session.items}
    before = collecting("1") if by_name else None
    time.sleep(2)
    later = ids(collecting("2", **CHANGED))
    if before is None:  # files may have been asked for in another order
        here = sorted((item.nodeid for item in request.session.items), key=file_of)
        found = differences(here, sorted((each for each in later if file_of(each) in files), key=file_of))
    else:
        found = differences(ids(before), later)
    assert not found, f"{len(found)} of {len(later)} tests are called otherwise a moment later:\n" + "\n".join(
        found[:5]
    )


SUITE = """
import random, time
import pytest

@pytest.mark.parametrize("case", [time.time_ns()])
def test_time(case): ...

@pytest.mark.parametrize("case", [random.random()])
def test_randomness(case): ...

@pytest.mark.parametrize("case", sorted(["warp", "weft", "heddle", "shuttle"], key=hash))
def test_order(case): ...

@pytest.mark.parametrize("case", [time.strftime("%z")])
def test_zone(case): ...

@pytest.mark.parametrize("case", ["warp", "weft"])
def test_sound(case): ...
"""


def test_what_hangs_on_the_moment_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    processes = (
        collecting("1", str(tmp_path), "--noconftest"),
        collecting("2", str(tmp_path), "--noconftest", **CHANGED),
    )
    found = "\n".join(differences(*map(ids, processes)))
    assert [name for name in ("time", "randomness", "order", "zone", "sound") if f"test_{name}" in found] == [
        *("time", "randomness", "order", "zone"),
    ]
