"""The load on the cores, and how threads wait: from files as the system writes them, never by how fast something is."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from heddle.native import cores as module
from heddle.native.cores import CPULoad, Waiting, cores, side_by_side


def test_a_containers_share_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 3, 5}, raising=False)
    limit = tmp_path / "cpu.max"
    assert cores(limit) == 4
    for text, expected in (("max 100000\n", 4), ("150000 100000\n", 2), ("20000 100000\n", 1), ("900000 100000\n", 4)):
        limit.write_text(text)
        assert cores(limit) == expected


def statistics(path: Path, idle: dict[int, int]) -> Path:
    """/proc/stat with these ticks of idle time, four fifths of it waiting for a disk."""
    lines = [f"cpu{core} 9 9 9 {ticks // 5} {ticks - ticks // 5} 9 9 9 0 0" for core, ticks in idle.items()]
    path.write_text("\n".join(["cpu  1 2 3 999999 5 6 7 8 0 0", *lines, "intr 1 2 3\n"]))
    return path


def test_the_load_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cores that this process may run on, and only of those."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
    load = CPULoad.read(statistics(tmp_path / "stat", {0: 500, 1: 7777, 2: 1000}))
    ticks = os.sysconf("SC_CLK_TCK")
    assert load.idle == {0: 500 / ticks, 2: 1000 / ticks}
    assert CPULoad.read(tmp_path / "nothing").idle == {}


@pytest.mark.parametrize(
    ("count", "threads", "idle", "own", "others", "busy"),
    [
        (2, 2, 0.0, 4.0, 0.0, False),  # all is this process's
        (2, 2, 0.0, 3.0, 0.5, True),  # one of two cores is shared by halves
        (2, 2, 1.0, 2.6, 0.2, False),  # something small
        (2, 1, 0.0, 2.0, 1.0, False),  # another program has the core that is not needed
        (2, 1, 0.0, 1.0, 1.5, True),
        (16, 8, 16.0, 8.0, 4.0, False),
        (16, 12, 8.0, 8.0, 8.0, True),
    ],
)
def test_what_others_use(
    count: int, threads: int, idle: float, own: float, others: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two seconds."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    before = CPULoad(10.0, dict.fromkeys(range(count), 100.0), 50.0)
    after = CPULoad(12.0, dict.fromkeys(range(count), 100.0 + idle / count), 50.0 + own)
    assert after.used_by_others(before) == pytest.approx(others)
    assert after.busy(before) is busy
    assert before.used_by_others(before) == 0.0
    assert not CPULoad(12.0, {}, 50.0).busy(CPULoad(10.0, {}, 50.0))  # a system that does not say


class Machine:
    """Two cores and a process with two threads on them, whose clock and load are set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waiting, self.threads = Waiting(), 2
        self.now, self.own, self.idle = 100.0, 0.0, {0: 0.0, 1: 0.0}
        self.taken: set[int] = set()  # cores that another program has
        self.placed = {7: {0, 1}, 8: {0, 1}}  # where the process's threads may run
        self.crowds: list[int] = []
        patch.setattr(torch, "get_num_threads", lambda: self.threads)
        patch.setattr(module, "waiting", lambda: self.waiting)
        patch.setattr(module, "_threads", lambda: list(self.placed))
        patch.setattr(module, "_crowd", self.crowd)
        patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep))
        patch.setattr(CPULoad, "read", lambda: CPULoad(self.now, dict(self.idle), self.own))
        patch.setattr(os, "sched_getaffinity", lambda thread: self.placed[thread or 7], raising=False)
        patch.setattr(os, "sched_setaffinity", self.placed.__setitem__, raising=False)

    def crowd(self, threads: int, is_over: object) -> SimpleNamespace:
        self.crowds.append(threads)
        return SimpleNamespace(set=lambda: self.crowds.remove(threads))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for core in self.idle.keys() - self.taken:
            self.idle[core] += seconds

    def after(self, seconds: float, others: float) -> list[set[int]]:
        """Where the threads run after so many seconds, in which others have used so many cores."""
        self.now, self.own = self.now + seconds, self.own + (2 - others) * seconds
        self.waiting.follow()
        return list(self.placed.values())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


ALL = [{0, 1}, {0, 1}]


def test_threads_wait_and_run_as_the_load_says_and_while_it_changes(machine: Machine) -> None:
    machine.taken = {1}
    loads = [0.0, 0.0, 0.6, 1.0, 0.0, 0.0, 1.0]
    assert [machine.after(0.5, others) for others in loads] == [ALL, ALL, [{0}, {0}], [{0}, {0}], ALL, ALL, [{0}, {0}]]
    assert machine.crowds == [2]
    assert cores(Path("/nothing")) == 2  # still


def test_another_core_is_left_when_another_is_taken(machine: Machine) -> None:
    machine.taken = {1}
    assert [machine.after(0.5, others) for others in (0.0, 1.0)] == [ALL, [{0}, {0}]]
    machine.taken = {0}
    assert [machine.after(3.0, 1.0) for _ in range(3)][-1] == [{1}, {1}]
    machine.taken = {0, 1}  # none is free: they share all
    assert [machine.after(3.0, 1.5) for _ in range(3)][-1] == ALL
    assert machine.crowds == [2]


def test_a_look_takes_its_time(machine: Machine) -> None:
    """The load is not read in every step, and a pause says nothing of it."""
    machine.taken = {1}
    machine.after(0.5, 0.0)
    assert machine.after(0.1, 1.0) == ALL
    assert machine.after(0.4, 1.0) == [{0}, {0}]
    assert machine.after(60.0, 2.0) == [{0}, {0}]  # the process did nothing
    assert machine.after(0.5, 0.0) == ALL


def test_a_thread_keeps_to_its_own_cores(machine: Machine) -> None:
    """As its user has placed it."""
    machine.taken = {1}
    machine.placed[8] = {1}
    assert [machine.after(0.5, others) for others in (0.0, 1.0, 0.0)][1:] == [[{0}, {1}], [{0, 1}, {1}]]


def test_one_thread_waits_for_nobody(machine: Machine) -> None:
    machine.taken, machine.threads = {1}, 1
    assert [machine.after(0.5, 1.5) for _ in range(3)] == [ALL] * 3
    machine.threads = 2
    assert [machine.after(0.5, 1.0) for _ in range(2)][-1] == [{0}, {0}]
    machine.threads = 1
    assert machine.after(0.5, 1.5) == ALL
    assert machine.crowds == []


def test_everything_is_as_before_when_nothing_is_computed(machine: Machine) -> None:
    machine.taken = {1}
    assert [machine.after(0.5, 1.0) for _ in range(2)][-1] == [{0}, {0}]
    assert not machine.waiting._is_over(module.OVER)
    assert machine.waiting._is_over(0.0)
    assert (list(machine.placed.values()), machine.crowds) == (ALL, [])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "GOMP_parallel"), reason="another OpenMP than GNU's")
def test_a_crowd_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real: its threads are there, and end when they are told to, or when nothing is computed."""

    def gone() -> bool:
        end = time.monotonic() + 10
        while len(module._threads()) > before and time.monotonic() < end:
            time.sleep(0.001)
        return len(module._threads()) == before

    before = len(module._threads())
    over = module._crowd(3, lambda used: False)
    assert over is not None
    assert len(module._threads()) == before + 3
    over.set()
    assert gone()
    monkeypatch.setattr(module, "OVER", 0.001)
    assert module._crowd(3, lambda used: used < 10) is not None
    assert gone()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_items_are_computed_at_once(two_threads: None) -> None:
    both = threading.Barrier(2)

    def compute(item: int) -> tuple[int, int]:
        both.wait(timeout=30)  # each waits for another one
        return item, torch.get_num_threads()

    assert list(side_by_side(compute, range(6))) == [(item, 1) for item in range(6)]
    assert torch.get_num_threads() == 2


def test_items_are_taken_as_they_are_needed(two_threads: None) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = side_by_side(lambda item: item, items())
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 5
    results.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == 2


def test_an_error_ends_all(two_threads: None) -> None:
    def compute(item: int) -> int:
        if item == 2:
            raise ValueError("no")
        return item

    results = side_by_side(compute, range(50))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no"):
        next(results)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("threads", "items"), [(1, 3), (2, 1), (2, 0)])
def test_without_a_second_item_or_thread_nothing_changes(threads: int, items: int, two_threads: None) -> None:
    torch.set_num_threads(threads)
    own = threading.get_ident()
    assert list(side_by_side(lambda item: threading.get_ident(), range(items))) == [own] * items
