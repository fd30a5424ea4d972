"""Measured ceilings: units and bounds, never how fast."""

import os
import time
from pathlib import Path

import pytest
import torch

from heddle.account import available_memory, copy_rate, machine, matmul_rate, slowdown, usable_precision
from heddle.errors import HeddleError
from tests.cards import OLD, SMALL, Card, put_in


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_matmul_rate_is_work_over_time(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_seconds", lambda call, seconds, device: call() is None or 0.5)
    assert matmul_rate(dtype, size=32) == 2 * 32**3 / 0.5


@pytest.mark.usefixtures("new_machine")
def test_a_slowdown_is_a_ratio_of_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {torch.float32: 150e9, torch.bfloat16: 0.75e9}
    monkeypatch.setattr(machine, "_matmul_rate", lambda dtype, *settings: rates[dtype])
    assert slowdown(torch.bfloat16) == 200.0


@pytest.mark.usefixtures("new_machine")
def test_a_slowdown_and_a_peak_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor time of one thread, whatever else is running; a second question has the first one's answer."""
    threads, clocks = set(), set()

    def rate(dtype: torch.dtype, size: int, seconds: float, device: torch.device, clock: object = None) -> float:
        threads.add(torch.get_num_threads())
        clocks.add(clock)
        return {torch.float32: 1e9, torch.bfloat16: 4e9}[dtype]

    monkeypatch.setattr(machine, "_matmul_rate", rate)
    assert (slowdown(torch.bfloat16), threads, clocks) == (0.25, {1}, {time.thread_time})
    assert machine.peak_rate(torch.bfloat16) == 4e9
    monkeypatch.setattr(machine, "_matmul_rate", lambda *args: pytest.fail("measured again"))
    assert (slowdown(torch.bfloat16), machine.peak_rate(torch.bfloat16)) == (0.25, 4e9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags : fpu avx2 avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\nflags : avx512_bf16", False),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features : fp asimd\n", False),
        ("processor : 0\n", None),
    ],
)
def test_bf16_units_are_read_from_the_processors_flags(tmp_path: Path, text: str, expected: bool | None) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert machine.has_bf16(tmp_path / "cpuinfo") is expected
    assert machine.has_bf16(tmp_path / "nothing") is None


@pytest.mark.parametrize(("times", "expected"), [(200.0, "fp32"), (2.1, "fp32"), (1.9, "bf16"), (0.25, "bf16")])
def test_a_precision_over_twice_as_slow_as_fp32_is_not_used(
    times: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "slowdown", lambda dtype, device: times)
    assert usable_precision("bf16") == expected
    monkeypatch.setattr(machine, "slowdown", lambda dtype, device: pytest.fail("fp32 was measured"))
    assert usable_precision("fp32") == "fp32"


@pytest.mark.parametrize(("card", "expected"), [(OLD, "fp32"), (SMALL, "bf16")])
def test_a_card_says_what_it_has_units_for(card: Card, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its compute capability: nothing is measured."""
    put_in(card, monkeypatch)
    monkeypatch.setattr(machine, "slowdown", lambda *arguments: pytest.fail("a card was measured"))
    assert usable_precision("bf16", "cuda") == expected
    assert usable_precision("fp32", "cuda") == "fp32"


@pytest.mark.parametrize(
    ("card", "device", "precision", "tf32", "message"),
    [
        (OLD, "cuda", "bf16", False, "precision = bf16: a Turing card of 8 GiB has no units for bf16"),
        (OLD, "cuda", "fp32", True, "tf32 = true: a Turing card of 8 GiB has no units for TF32; leave it out"),
        (OLD, "cuda", "auto", False, None),
        (OLD, "cpu", "bf16", False, None),
        (OLD, "cpu", "fp32", True, "tf32 = true: device = cpu has no units for TF32; leave it out"),
        (SMALL, "cuda", "bf16", False, None),
        (SMALL, "cuda", "fp32", True, None),
    ],
)
def test_what_a_device_has_no_units_for_is_refused(
    card: Card, device: str, precision: str, tf32: bool, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(card, monkeypatch)
    if message is None:
        machine.check_units(precision, tf32, device)
        return
    with pytest.raises(HeddleError) as refused:
        machine.check_units(precision, tf32, device)
    assert str(refused.value).startswith(message)


def test_tf32_has_a_peak_of_its_own(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured with TF32 on, which is off again afterwards."""
    rates = {"highest": 1e9, "high": 8e9}
    monkeypatch.setattr(machine, "_matmul_rate", lambda *settings: rates[torch.get_float32_matmul_precision()])
    assert machine.peak_rate(torch.float32) == 1e9
    assert machine.peak_rate(torch.float32, tf32=True) == 8e9
    assert torch.get_float32_matmul_precision() == "highest"


def test_measuring_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    assert slowdown(torch.bfloat16) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_copy_rate_counts_reading_and_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_seconds", lambda call, seconds, device: call() is None or 0.5)
    assert copy_rate(megabytes=1) == 2 * 2**20 / 0.5


def test_a_median_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    costs = iter([9.0, 9.0, 1.0, 3.0, 50.0, 2.0, 4.0])  # two calls to warm up, then five that count
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += next(costs)

    assert machine._seconds(call, 60.0, torch.device("cpu")) == 3.0


def test_an_accelerator_is_waited_for_once_in_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes while the host goes on: a millisecond for each call, and as much again for a wait."""
    clock, waiting, waits = [0.0], [0], [0]

    def call() -> None:
        waiting[0] += 1

    def finish(device: torch.device) -> None:
        waits[0] += 1
        clock[0] += 0.001 * waiting[0] + 0.001
        waiting[0] = 0

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(machine, "finish", finish)
    assert machine._seconds(call, 0.2, torch.device("cuda")) == pytest.approx(0.001 * 33 / 32)
    assert waits[0] < 20


@pytest.mark.parametrize(("device", "size"), [("cpu", 2048), ("cuda", 8192)])
def test_a_ceiling_is_measured_on_matrices_that_keep_the_device_busy(
    device: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(SMALL, monkeypatch)
    steps: list[object] = []
    monkeypatch.setattr(machine, "_matmul_rate", lambda dtype, size, *more: steps.append(size) or 1.0)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: steps.append("given back"))
    assert matmul_rate(device=device) == 1.0
    assert steps == [size, *(["given back"] if device == "cuda" else [])]


def test_real_rates_are_positive() -> None:
    assert matmul_rate(size=16, seconds=0.0) > 0
    assert copy_rate(megabytes=1, seconds=0.0) > 0


def test_available_memory_is_some_of_this_machine() -> None:
    assert 0 < available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_free_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  800 kB\nMemAvailable:   300 kB\n")
    assert machine._available(path) == 300 * 1024
    assert machine._available(tmp_path / "nothing") is None


def test_a_containers_limit_is_read(tmp_path: Path) -> None:
    assert machine._free_in_container(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert machine._free_in_container(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._free_in_container(tmp_path) is None
