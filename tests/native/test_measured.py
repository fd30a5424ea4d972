"""Measurements of this machine: made once, kept whole, made again where they were made under load."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.native import measured as module
from heddle.native.measured import Measurements, directory, measured_once, one_thread, processor

pytestmark = pytest.mark.usefixtures("new_machine")
Load = Callable[[bool], None]


@pytest.fixture(autouse=True)
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Whether other programs have the cores; at first they have not."""

    def set_busy(busy: bool) -> None:
        monkeypatch.setattr(module, "_since", lambda before: busy)

    set_busy(False)
    return set_busy


def counted() -> tuple[list[int], Callable[[], int]]:
    """How often it was measured, and a measurement with another answer each time."""
    calls: list[int] = []

    def measure() -> int:
        calls.append(len(calls))
        return len(calls)

    return calls, measure


def test_an_answer_is_kept_for_its_question() -> None:
    calls, measure = counted()
    assert [measured_once("a", {"x": 1}, measure) for _ in range(10)] == [1] * 10
    assert measured_once("a", {"x": 2}, measure) == 2
    assert measured_once("b", {"x": 1}, measure) == 3
    assert len(calls) == 3


def test_an_answer_holds_for_as_many_threads_unless_it_is_one_threads() -> None:
    _, measure = counted()
    threads = torch.get_num_threads()
    answers = [measured_once("a", {}, measure), measured_once("b", {}, measure, steady=True)]
    torch.set_num_threads(threads + 1)
    try:
        others = [measured_once("a", {}, measure), measured_once("b", {}, measure, steady=True)]
    finally:
        torch.set_num_threads(threads)
    assert (answers, others) == ([1, 2], [3, 2])


def test_what_was_measured_under_load_serves_under_load_and_is_then_measured_again(load: Load) -> None:
    _, measure = counted()
    load(True)
    assert [measured_once("a", {}, measure) for _ in range(3)] == [1, 1, 1]
    load(False)
    assert [measured_once("a", {}, measure) for _ in range(3)] == [2, 2, 2]
    load(True)
    assert measured_once("a", {}, measure) == 2


def test_processor_time_does_not_depend_on_the_load(load: Load) -> None:
    _, measure = counted()
    load(True)
    assert measured_once("a", {}, measure, steady=True) == 1
    load(False)
    assert measured_once("a", {}, measure, steady=True) == 1


@pytest.mark.parametrize("change", ["processor", "cores", "torch", "vectors", "version"])
def test_another_machine_is_measured_for_itself(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory may be shared by several."""
    _, measure = counted()
    assert measured_once("a", {}, measure) == 1
    if change == "torch":
        monkeypatch.setattr(torch, "__version__", "9.9")
    elif change == "vectors":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "other")
    elif change == "version":
        monkeypatch.setattr(module, "VERSION", 0)
    else:
        monkeypatch.setattr(module, change, lambda: "other")
    assert measured_once("a", {}, measure) == 2
    monkeypatch.undo()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"answer": 7, "busy": false}', '{"machine": {}, "answer": 7, "busy": false}']
)
def test_a_damaged_file_is_measured_again(new_machine: Path, damage: str) -> None:
    _, measure = counted()
    assert measured_once("a", {}, measure) == 1
    (file,) = new_machine.rglob("*.json")
    file.write_text(damage)
    assert [measured_once("a", {}, measure) for _ in range(2)] == [2, 2]


def test_a_directory_that_cannot_be_written_keeps_nothing(new_machine: Path) -> None:
    """It is a file here, since root may write anywhere."""
    new_machine.write_text("no directory")
    _, measure = counted()
    assert [measured_once("a", {}, measure) for _ in range(2)] == [1, 2]
    assert new_machine.read_text() == "no directory"


def test_of_two_processes_that_measure_at_once_both_use_the_first_answer(load: Load) -> None:
    def meanwhile() -> str:
        Measurements.for_device().store(name, {"answer": "theirs", "busy": False})
        return "mine"

    assert measured_once("a", {}, lambda: "before") == "before"
    ((name, _),) = [(file.name, file) for file in Measurements.for_device().folder.glob("*.json")]
    Measurements.for_device().forget()
    assert measured_once("a", {}, meanwhile) == "theirs"
    assert measured_once("a", {}, meanwhile) == "theirs"


def test_nothing_is_left_half_written(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert measured_once("a", {}, lambda: 1) == 1
    assert [each for each in new_machine.rglob("*") if each.is_file()] == []


def test_they_can_be_listed_and_forgotten() -> None:
    measured_once("b", {"x": 1}, lambda: [1, 2])
    measured_once("a", {}, lambda: 0.5)
    here = Measurements.for_device()
    rows = here.all()
    assert [(row["question"], row["answer"], row["busy"]) for row in rows] == [("a", 0.5, False), ("b", [1, 2], False)]
    assert rows[1]["about"] == {"x": 1, "threads": torch.get_num_threads()}
    assert (here.forget(), here.all(), here.forget()) == (2, [], 0)


def test_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", "/here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert directory() == Path("/here")
    monkeypatch.delenv("HEDDLE_CACHE")
    assert directory() == Path("/caches/heddle")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert directory() == Path("/home/me/.cache/heddle")


def test_a_processor_is_its_name_and_its_units(tmp_path: Path) -> None:
    file, names = tmp_path / "cpuinfo", []
    for flags in ("avx2", "avx2 avx512f"):
        file.write_text(
            f"processor : 0\nmodel name : Good CPU\nflags : {flags}\n\nprocessor : 1\nmodel name : Good CPU\n"
        )
        names.append(processor(file))
    assert names[0] != names[1]
    assert all(name.startswith("Good CPU, ") for name in names)
    assert processor(tmp_path / "nothing")


def test_one_thread_for_a_while() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_a_file_says_what_it_holds_for(new_machine: Path) -> None:
    measured_once("a", {"x": 1}, lambda: True)
    (file,) = new_machine.rglob("*.json")
    row = json.loads(file.read_text())
    assert (row["machine"]["torch"], row["question"], row["answer"]) == (torch.__version__, "a", True)
