"""Sharing cores with other programs: how many cores they use, and where and how this process's threads run and wait.

An operation on several threads ends with the slowest thread. The others can wait in two ways. If they spin, they start the next
operation at once: on an idle machine, short steps take half as long. But if another program needs a core, they block it while the
thread that they wait for has none, and steps take many times as long. So while the machine is busy, waiting threads sleep, and all
run on the cores that others leave free, in turns if these are fewer. Results stay the same, bit for bit.
"""

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from math import ceil
from pathlib import Path
from typing import TypeVar

import torch

BUSY = 0.25  # cores taken from this process's threads, from which the machine counts as busy
LOOK = 0.4  # seconds between two readings of the load; the system counts time in hundredths of a second
PAUSE = 0.06  # seconds in which this process sleeps, to see which cores others use
AGAIN = 5.0  # seconds after which to repeat that, while the machine is busy
OVER = 2.0  # seconds without work after which everything is reset
WORKERS = 2  # items that are computed at the same time

Item = TypeVar("Item")
Result = TypeVar("Result")


def allowed() -> set[int]:
    """The cores on which this process may run; empty if the system does not report them."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The number of cores that this process may use, within the limit of a container."""
    count = len(waiting().full_affinity or allowed()) or os.cpu_count() or 1
    with suppress(OSError, ValueError):  # other systems; "max": no limit
        quota, period = limit.read_text().split()
        count = min(count, ceil(int(quota) / int(period)))
    return max(1, count)


@dataclass(frozen=True)
class CPULoad:
    """Times of the cores, in seconds from an arbitrary origin.

    Attributes:
        now: when it was read.
        idle: idle time of each core on which this process may run, by its number; empty if the system does not report it.
        computed: seconds of processor time of this process and of its children that have ended.
    """

    now: float
    idle: Mapping[int, float]
    computed: float

    @classmethod
    def read(cls, statistics: Path = Path("/proc/stat")) -> "CPULoad":
        """The current times."""
        own_cores, idle = waiting().full_affinity or allowed(), dict[int, float]()
        with suppress(OSError), statistics.open() as lines:
            next(lines, None)  # the sum over all cores
            for line in lines:
                name, *ticks = line.split()
                if not name.startswith("cpu"):
                    break
                if int(name[3:]) in own_cores:
                    idle[int(name[3:])] = (int(ticks[3]) + int(ticks[4])) / os.sysconf("SC_CLK_TCK")
        times = os.times()
        return cls(time.perf_counter(), idle, time.process_time() + times.children_user + times.children_system)

    def used_by_others(self, earlier: "CPULoad") -> float:
        """The number of cores that other programs have used since `earlier`; 0 if the system does not report it."""
        span = self.now - earlier.now
        if not self.idle or self.idle.keys() != earlier.idle.keys() or span <= 0:
            return 0.0
        return max(0.0, len(self.idle) - (sum(self.free(earlier).values()) + self.computed - earlier.computed) / span)

    def free(self, earlier: "CPULoad") -> dict[int, float]:
        """Idle time of each core since `earlier`."""
        return {core: seconds - earlier.idle.get(core, seconds) for core, seconds in self.idle.items()}

    def busy(self, earlier: "CPULoad") -> bool:
        """Whether other programs have left fewer cores than this process has threads."""
        return self.used_by_others(earlier) - max(0, len(self.idle) - torch.get_num_threads()) >= BUSY


@dataclass
class Waiting:
    """How this process's threads wait for each other: spinning or, while the machine is busy, sleeping and on free cores.

    GNU's OpenMP, which torch uses on Linux, lets all threads sleep while there are more of them than cores. So an idle thread with
    its own team of threads makes the others sleep; when it ends, they spin again. On other systems this has no effect.

    Attributes:
        load: the last reading of the load.
        full_affinity: the cores on which the process may run, while it is restricted to fewer; else empty.
        before: the cores of each thread before the restriction.
        crowd: ends the thread that makes the others sleep.
        placed: when cores were last chosen.
    """

    load: CPULoad | None = None
    full_affinity: set[int] = field(default_factory=set)
    before: dict[int, set[int]] = field(default_factory=dict)
    crowd: threading.Event | None = None
    placed: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """Read the load if it is due, and adapt."""
        earlier, alone = self.load, torch.get_num_threads() == 1  # a single thread never waits
        due = earlier is None or time.perf_counter() - earlier.now >= LOOK
        if due and (not alone or self.crowd is not None) and self.lock.acquire(blocking=False):
            try:
                self.load = CPULoad.read()
                # After a pause, such as a server's, the reading does not show the current load.
                if earlier is not None and self.load.computed - earlier.computed > 0.2 * (self.load.now - earlier.now):
                    self.share(not alone and self.load.busy(earlier))
            finally:
                self.lock.release()

    def share(self, busy: bool) -> None:
        """Leave busy cores to other programs, or use all cores again."""
        if not busy:
            self.reset()
            return
        if self.crowd is None:
            self.crowd = _crowd(max(2, cores() - torch.get_num_threads() + 2), self._is_over)
        if self.crowd is not None and (not self.full_affinity or time.perf_counter() - self.placed > AGAIN):
            start = CPULoad.read()
            time.sleep(PAUSE)
            self.load = CPULoad.read()
            self.place({core for core, seconds in self.load.free(start).items() if seconds > PAUSE / 2})

    def place(self, free: set[int]) -> None:
        """Restrict every thread to the free cores among its own."""
        self.placed = time.perf_counter()
        self._put_back()
        if free and free != allowed():
            self.full_affinity = allowed()
            for thread in _threads():
                with suppress(OSError):  # the thread has ended
                    self.before[thread] = set(os.sched_getaffinity(thread))
                    os.sched_setaffinity(thread, self.before[thread] & free or self.before[thread])

    def reset(self) -> None:
        """Let every thread spin again, on its original cores."""
        self._put_back()
        if self.crowd is not None:
            self.crowd.set()
            self.crowd = None

    def _put_back(self) -> None:
        for thread in _threads() if self.full_affinity else ():
            with suppress(OSError):
                os.sched_setaffinity(thread, self.before.get(thread, self.full_affinity))
        self.full_affinity, self.before = set(), {}

    def _is_over(self, used: float) -> bool:
        """Reset everything if this process hardly computed: `used` of the last `OVER` seconds. Returns whether it did."""
        if used > 0.1 * OVER:
            return False
        with self.lock:
            self.load = None
            self.reset()
        return True


@cache
def waiting() -> Waiting:
    """The state of this process: OpenMP has one setting for all threads."""
    return Waiting()


def share_cores() -> None:
    """Adapt to the load of other programs. Compute loops call it in each iteration."""
    waiting().follow()


def side_by_side(compute: Callable[[Item], Result], items: Iterable[Item], workers: int = WORKERS) -> Iterator[Result]:
    """Yield what a function computes of each item, in order; several items at the same time, which share torch's threads.

    Operations that are too short for many threads take less time so: while one item waits, another one computes.

    Args:
        compute: called in other threads; modes such as `torch.no_grad` belong to a thread, so it sets them itself.
        items: they are taken as they are needed.
        workers: items at the same time; with fewer threads, as many as these.
    """
    threads, source = torch.get_num_threads(), iter(items)
    workers = min(workers, threads)
    first = list(islice(source, workers))
    if len(first) < 2:
        yield from map(compute, chain(first, source))
        return
    torch.set_num_threads(threads // workers)
    # OpenMP's number, which compiled code reads, belongs to a thread.
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        waiting = deque(pool.submit(compute, item) for item in first)
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(compute, item) for item in islice(source, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _threads() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def _crowd(threads: int, is_over: Callable[[float], bool]) -> threading.Event | None:
    """Add waiting threads until the event is set or the process has been idle for a while; None without GNU OpenMP."""
    library = ctypes.CDLL(None)
    try:
        parallel, no_op = library.GOMP_parallel, ctypes.cast(library.free, ctypes.c_void_p)  # free(NULL) does nothing
    except AttributeError:
        return None
    over, ready = threading.Event(), threading.Event()

    def crowd() -> None:
        parallel(no_op, None, threads, 0)
        ready.set()
        used = time.process_time()
        while not over.wait(OVER) and not is_over(time.process_time() - used):  # its team of threads ends with it
            used = time.process_time()

    threading.Thread(target=crowd, name="heddle crowd", daemon=True).start()
    ready.wait()
    return over
