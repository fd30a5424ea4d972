"""Measures this machine: matrix products, copies, free memory."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from heddle.checks import between, checked, one_of
from heddle.errors import HeddleError, ran_out_of_memory
from heddle.model.device import find_device
from heddle.model.precision import DTYPES, NUMBERS, tf32_products
from heddle.model.products import has_onednn, onednn
from heddle.native.measured import measured_once, one_thread

WARM_UP = 2  # calls; the first ones start threads, libraries and clocks
AT_LEAST = 3  # calls, so that the median is meaningful
BF16 = frozenset(("avx512_bf16", "amx_bf16", "avx10_2", "bf16", "svebf16"))  # as Linux names them
Clock = Callable[[], float]
LONGEST = 3600.0  # seconds of a measurement
SIZE, LARGE_SIZE = 2048, 8192  # of matrices that keep a CPU busy, and an accelerator
ENOUGH = 0.02  # least seconds of calls between two waits for an accelerator; a wait takes some 10 microseconds
AMPERE = (8, 0)  # compute capability from which NVIDIA's cards have units for bf16 and for TF32
TOO_SLOW = 2.0  # times as slow as fp32; beyond it a lower precision does not pay


@checked(dtype=NUMBERS, size=between(1, 2**20), seconds=between(0, LONGEST))
def matmul_rate(
    dtype: torch.dtype = torch.float32,
    size: int | None = None,
    seconds: float = 0.3,
    device: torch.device | str = "cpu",
) -> float:
    """FLOP/s of square matrix products of `size`: the ceiling that a training step is compared with.

    In fp32 on a CPU, torch and oneDNN share the time, and the faster one counts (see `heddle.model.products`).

    Args:
        dtype: of the matrices.
        size: rows and columns; None: as many as keep the device busy, 2,048 on a CPU, 8,192 on an accelerator.
        seconds: about how long to measure.
        device: where.
    """
    device = find_device(device)
    rate = _matmul_rate(dtype, size or (SIZE if device.type == "cpu" else LARGE_SIZE), seconds, device)
    release_cached(device)
    return rate


def peak_rate(dtype: torch.dtype, device: torch.device | str = "cpu", tf32: bool = False) -> float:
    """The `matmul_rate` of this machine, measured once and cached (see `heddle.native.measured`)."""
    device = find_device(device)
    properties = {"dtype": "tf32" if tf32 else str(dtype)}
    with tf32_products(tf32):
        return measured_once("matrix-product", properties, lambda: matmul_rate(dtype, device=device), device.type)


@contextmanager
def explain_out_of_memory(setting: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into a HeddleError that names the setting of the size."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise HeddleError(f"{setting}: not enough memory; choose a smaller value ({str(error)[:80]})") from error


def _matmul_rate(dtype: torch.dtype, size: int, seconds: float, device: torch.device, *clock: Clock) -> float:
    with explain_out_of_memory(f"size = {size}"):
        # Not random: measuring must not change the random state.
        a = torch.linspace(-1, 1, size * size, device=device).view(size, size).to(dtype)
        b = a.flip(0)
        out = torch.empty_like(a)
    if device.type == "cpu" and dtype == torch.float32 and has_onednn():
        seconds_per_product = min(
            _seconds(call, seconds / 2, device, *clock)
            for call in (lambda: torch.mm(a, b, out=out), lambda: onednn(a, b))
        )
    else:
        seconds_per_product = _seconds(lambda: torch.mm(a, b, out=out), seconds, device, *clock)
    return 2 * size**3 / seconds_per_product


@checked(dtype=NUMBERS)
def slowdown(dtype: torch.dtype, device: torch.device | str = "cpu") -> float:
    """How many times slower than in fp32 matrix products in `dtype` are on this machine; below 1, they are faster.

    The products are small, because a CPU without units for a dtype can be hundreds of times slower; even then this takes
    only half a second. On a CPU it is the processor time of one thread, which other programs do not affect. It is cached for this
    machine (see `heddle.native.measured`).
    """
    device = find_device(device)
    steady = device.type == "cpu"
    clock = time.thread_time if steady else time.perf_counter

    def compare() -> float:
        with one_thread():
            size = 256 if steady else SIZE
            rates = [_matmul_rate(kind, size, 0.02, device, clock) for kind in (torch.float32, dtype)]
        return rates[0] / rates[1]

    return measured_once("slowdown", {"dtype": str(dtype)}, compare, device.type, steady)


def has_bf16(info: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether the processor has bf16 matrix instructions; None if the system does not report it."""
    try:
        lines = info.read_text(errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else not BF16.isdisjoint(flags)


def card_has_bf16(device: torch.device | str) -> bool:
    """Whether a CUDA device has units for bf16, by its compute capability. One small product would take as long in fp32."""
    return torch.cuda.get_device_capability(device) >= AMPERE


def check_units(precision: str, tf32: bool, device: torch.device | str) -> None:
    """Refuse what a device has no units for. On a CPU, bf16 is computed without them, if slowly.

    Raises:
        HeddleError: bf16 on a card without units for it, or TF32 elsewhere than on a card of NVIDIA's that has it.
    """
    device = find_device(device)
    card = device.type == "cuda"
    has_units = card and card_has_bf16(device)
    name = torch.cuda.get_device_name(device) if card else f"device = {device.type}"
    if precision == "bf16" and card and not has_units:
        raise HeddleError(f"precision = bf16: {name} has no units for bf16, so it would be slower; use fp32 or auto")
    if tf32 and not (has_units and torch.version.hip is None):
        raise HeddleError(f"tf32 = true: {name} has no units for TF32; leave it out")


@checked(precision=one_of(DTYPES))
def usable_precision(precision: str, device: torch.device | str = "cpu") -> str:
    """The given precision, or `fp32` if a card has no units for it, or if fp32 is more than twice as fast on this machine.

    With `fp32` instead of `bf16`, results differ by rounding; callers must report the change.
    """
    device = find_device(device)
    if device.type == "cuda":
        return precision if card_has_bf16(device) else "fp32"
    return "fp32" if precision != "fp32" and slowdown(DTYPES[precision], device) > TOO_SLOW else precision


def fast_precision(precision: str, device: torch.device | str = "cpu") -> str:
    """The given precision, or `fp32` if a device has no units for it, or computes slower in it than in fp32."""
    device = find_device(device)
    if device.type == "cpu" and has_bf16() is False:
        return "fp32"
    if device.type == "cuda":
        return usable_precision(precision, device)
    return precision if precision == "fp32" or slowdown(DTYPES[precision], device) < 1 else "fp32"


@checked(megabytes=between(1, 2**30), seconds=between(0, LONGEST))
def copy_rate(megabytes: int = 256, seconds: float = 0.3, device: torch.device | str = "cpu") -> float:
    """Bytes/s of a plain copy, counting both reads and writes: the ceiling of decoding one token at a time."""
    device = find_device(device)
    with explain_out_of_memory(f"megabytes = {megabytes}"):
        source = torch.zeros(megabytes * 2**20, dtype=torch.uint8, device=device)
        target = torch.ones_like(source)
    rate = 2 * source.numel() / _seconds(lambda: target.copy_(source), seconds, device)
    del source, target
    release_cached(device)
    return rate


@checked()
def available_memory(device: torch.device | str = "cpu") -> int:
    """Free bytes on a device; on a CPU, at most those left of a container's limit.

    If the operating system does not report free memory, the total is returned.
    """
    device = find_device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _available(Path("/proc/meminfo"))
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container_free = _free_in_container(Path("/sys/fs/cgroup"))
    return free if container_free is None else min(free, container_free)


@checked()
def total_memory(device: torch.device | str = "cpu") -> int:
    """Total bytes of a device; on a CPU, at most the limit of a container."""
    device = find_device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return total


def _seconds(call: Callable[[], object], seconds: float, device: torch.device, clock: Clock | None = None) -> float:
    """Median time of a call, repeated for about `seconds`.

    An accelerator gets so many calls at a time that they take at least `ENOUGH`; then it is waited for once.
    """
    clock = clock or time.perf_counter

    def taken(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            call()
        finish(device)
        return clock() - start

    taken(WARM_UP)
    calls = 1
    while device.type != "cpu" and taken(calls) < ENOUGH:
        calls *= 2
    times: list[float] = []
    begin = clock()
    while len(times) < AT_LEAST or clock() - begin < seconds:
        times.append(taken(calls) / calls)
    return max(median(times), 1e-9)


def finish(device: torch.device) -> None:
    """Wait until a device has computed what it was given; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def release_cached(device: torch.device) -> None:
    """Give the memory back that an accelerator's allocator keeps for tensors that are gone, so that it counts as free."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def _available(meminfo: Path) -> int | None:
    """The memory that Linux estimates to be available, or None on other systems."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(available[0]) * 1024 if available else None


def _free_in_container(group: Path) -> int | None:
    """Bytes left of a container's memory limit; None without a limit. Cached file pages count as free, since they are evicted."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    files = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(int(limit) - (used - files), 0)
