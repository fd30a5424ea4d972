"""The processor's cores: how many this process may use, how many others use, and where this process's threads wait and run.

An operation on several threads ends when the slowest has its part. Threads that have theirs can wait in two ways. Awake, they start
the next operation at once: on a quiet machine, short steps take half as long. But if another program wants a core, they hold it
while the thread that they wait for has none, and steps take many times as long. So while this machine is busy, threads wait asleep,
and run on the cores that others leave, in turns if these are fewer. What each thread computes, and so every bit, stays the same.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from pathlib import Path

import torch

BUSY = 0.25  # cores that others use in place of this process's threads, from which the machine counts as busy
LOOK = 0.4  # seconds between two looks at the load; the system counts time in hundredths of a second
PAUSE = 0.06  # seconds in which this process does nothing, to see which cores others use
AGAIN = 5.0  # seconds after which to see it again, while the machine is busy
OVER = 2.0  # seconds without work after which everything is as it was before


def allowed() -> set[int]:
    """The cores on which this process may run; empty: the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many cores this process may use: those it may run on, within the limit of a container."""
    count = len(waiting().mine or allowed()) or os.cpu_count() or 1
    with suppress(OSError, ValueError):  # other systems; "max": no limit
        quota, period = limit.read_text().split()
        count = min(count, ceil(int(quota) / int(period)))
    return max(1, count)


@dataclass(frozen=True)
class CPULoad:
    """What the cores have done, in seconds since some time in the past.

    Attributes:
        now: when it was read.
        idle: how long each core on which this process may run was idle, by its number; empty: the system does not say.
        own: how long this process has computed.
    """

    now: float
    idle: Mapping[int, float]
    own: float

    @classmethod
    def read(cls, statistics: Path = Path("/proc/stat")) -> "CPULoad":
        """What they have done up to now."""
        mine, idle = waiting().mine or allowed(), dict[int, float]()
        with suppress(OSError), statistics.open() as lines:
            next(lines, None)  # the sum over all cores
            for line in lines:
                name, *ticks = line.split()
                if not name.startswith("cpu"):
                    break
                if int(name[3:]) in mine:
                    idle[int(name[3:])] = (int(ticks[3]) + int(ticks[4])) / os.sysconf("SC_CLK_TCK")
        return cls(time.perf_counter(), idle, time.process_time())

    def others(self, earlier: "CPULoad") -> float:
        """How many cores other programs have used since `earlier`; 0 if the system does not say."""
        span = self.now - earlier.now
        if not self.idle or self.idle.keys() != earlier.idle.keys() or span <= 0:
            return 0.0
        return max(0.0, len(self.idle) - (sum(self.free(earlier).values()) + self.own - earlier.own) / span)

    def free(self, earlier: "CPULoad") -> dict[int, float]:
        """How long each core was idle since `earlier`."""
        return {core: seconds - earlier.idle.get(core, seconds) for core, seconds in self.idle.items()}

    def busy(self, earlier: "CPULoad") -> bool:
        """Whether other programs have left fewer cores than this process has threads."""
        return self.others(earlier) - max(0, len(self.idle) - torch.get_num_threads()) >= BUSY


@dataclass
class Waiting:
    """How this process's threads wait for each other: awake or, while the machine is busy, asleep and on the cores that are free.

    GNU's OpenMP, which torch has on Linux, lets all threads sleep while there are more of them than cores. So a thread that does
    nothing, and has helpers of its own, makes the others sleep; when it ends, they wait awake again. Elsewhere nothing changes.

    Attributes:
        load: the load when it was last looked at.
        mine: the cores on which the process may run, while it runs on fewer; else empty.
        before: the cores of each thread before that.
    """

    load: CPULoad | None = None
    mine: set[int] = field(default_factory=set)
    before: dict[int, set[int]] = field(default_factory=dict)
    crowd: threading.Event | None = None  # ends the thread that makes the others sleep
    placed: float = 0.0  # when cores were last chosen
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """Look at the load if it is time to, and wait accordingly."""
        earlier, alone = self.load, torch.get_num_threads() == 1  # nobody waits
        due = earlier is None or time.perf_counter() - earlier.now >= LOOK
        if due and (not alone or self.crowd is not None) and self.lock.acquire(blocking=False):
            try:
                self.load = CPULoad.read()
                # A pause, such as a server's, says nothing of the load now.
                if earlier is not None and self.load.own - earlier.own > 0.2 * (self.load.now - earlier.now):
                    self.share(not alone and self.load.busy(earlier))
            finally:
                self.lock.release()

    def share(self, busy: bool) -> None:
        """Leave to others what they use, or take every core again."""
        if not busy:
            self.reset()
            return
        if self.crowd is None:
            self.crowd = _crowd(max(2, cores() - torch.get_num_threads() + 2), self._is_over)
        if self.crowd is not None and (not self.mine or time.perf_counter() - self.placed > AGAIN):
            start = CPULoad.read()
            time.sleep(PAUSE)
            self.load = CPULoad.read()
            self.place({core for core, seconds in self.load.free(start).items() if seconds > PAUSE / 2})

    def place(self, free: set[int]) -> None:
        """Let every thread run on the free ones among its cores."""
        self.placed = time.perf_counter()
        self._put_back()
        if free and free != allowed():
            self.mine = allowed()
            for thread in _threads():
                with suppress(OSError):  # it has ended
                    self.before[thread] = set(os.sched_getaffinity(thread))
                    os.sched_setaffinity(thread, self.before[thread] & free or self.before[thread])

    def reset(self) -> None:
        """Let every thread wait awake, on the cores that it had."""
        self._put_back()
        if self.crowd is not None:
            self.crowd.set()
            self.crowd = None

    def _put_back(self) -> None:
        for thread in _threads() if self.mine else ():
            with suppress(OSError):
                os.sched_setaffinity(thread, self.before.get(thread, self.mine))
        self.mine, self.before = set(), {}

    def _is_over(self, used: float) -> bool:
        """Undo everything if this process has computed no more than so many seconds in `OVER` seconds; whether it has."""
        if used > 0.1 * OVER:
            return False
        with self.lock:
            self.load = None
            self.reset()
        return True


@cache
def waiting() -> Waiting:
    """How this process's threads wait: OpenMP has one way for all of them."""
    return Waiting()


def share_cores() -> None:
    """Share the cores with other programs as the load suggests. Loops that compute call it in each turn."""
    waiting().follow()


def _threads() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def _crowd(threads: int, is_over: Callable[[float], bool]) -> threading.Event | None:
    """Add so many threads that wait until the event is set, or until nothing has been computed for a while.

    None: there is no GNU OpenMP.
    """
    library = ctypes.CDLL(None)
    try:
        parallel, nothing = library.GOMP_parallel, ctypes.cast(library.free, ctypes.c_void_p)  # free(NULL) does nothing
    except AttributeError:
        return None
    over, ready = threading.Event(), threading.Event()

    def crowd() -> None:
        parallel(nothing, None, threads, 0)
        ready.set()
        used = time.process_time()
        while not over.wait(OVER) and not is_over(time.process_time() - used):  # its helpers end with it
            used = time.process_time()

    threading.Thread(target=crowd, name="heddle crowd", daemon=True).start()
    ready.wait()
    return over
