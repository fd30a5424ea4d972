"""The process of a training run: its allocator, the seed of each step, and kernels that repeat their bits."""

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from heddle.errors import HeddleError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # glibc's names for mallopt's parameters


def keep_memory() -> bool:
    """Tell the C library to reuse memory instead of mapping every large tensor, which costs a page fault per 4 KiB each step.

    Training on a CPU becomes up to 1.25 times as fast. Returns whether it worked: only glibc has this switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 64 << 20}
    done = [mallopt(name, value) == 1 for name, value in settings.items()]  # try all, even after a failure
    return all(done)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the operating system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def in_use() -> int:
    """Bytes of memory that this process holds or, of a card that it uses, the most that its tensors have taken."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else resident()


class Heap:
    """Gives free memory back where the heap has come to be in pieces: blocks of other sizes than before fit into none of them.

    What the first steps hold is the measure; free pieces are given back after each of them, so that each shows what it needs alone.
    Pages that are given back cost time when they are used again, 0.3 ms per MiB. So later this happens only where more is held, and
    after 20 times as long: it takes at most a twentieth of the time.
    """

    SETTLED = 16  # steps until the measure is taken
    GROWN = 1.05  # times the measure from which on memory is given back
    WORTH = 20 * 0.0003  # seconds per MiB that is held, between two times
    LOOK = 0.5  # seconds between looks

    def __init__(self) -> None:
        give_back()  # what measuring and loading left in pieces
        self.steps, self.needed = 0, 0
        self.last = self.looked = time.monotonic()

    def step(self) -> bool:
        """Called after each step; whether memory was given back."""
        self.steps += 1
        now = time.monotonic()
        if self.steps <= self.SETTLED:
            self.needed = max(self.needed, resident())
        elif now - self.looked < self.LOOK:
            return False
        else:
            held, self.looked = resident(), now
            if held < self.GROWN * self.needed or now - self.last < self.WORTH * held / 2**20:
                return False
        self.last = now
        return give_back()


def give_back() -> bool:
    """Give the heap's free pages back to the operating system; whether there is a way to."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Make a step's random numbers (dropout) a function of (seed, step, rank), so that resuming needs no generator state."""
    number = (seed * 0x9E3779B1 + step + rank * 0xD1B54A32D192ED03) % 2**63
    # Without an accelerator, torch.manual_seed still notes the seed for one, with a trace of the stack: half a millisecond.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(number)


def prepare_deterministic(repeatable: bool, device: str) -> None:
    """Make cuBLAS repeat its bits, if the training shall be repeatable, before its first product, when it reads this variable.

    Raises:
        HeddleError: the device type cannot.
    """
    if repeatable and device == "mps":
        raise HeddleError("deterministic = true: torch has no kernels for mps that repeat their bits: leave it out")
    if repeatable:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic(repeatable: bool) -> Iterator[None]:
    """Inside the `with` block, equal operations give equal bits on a GPU too, if the training shall be repeatable.

    Raises:
        HeddleError: an operation has no such kernel, or the process computed before `prepare_deterministic`.
    """
    if not repeatable:
        yield
        return
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # its setting is a property of the module
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # all new tensors are written anyway
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        if "CUBLAS" in str(error):
            advice = "this process used CUDA before; set CUBLAS_WORKSPACE_CONFIG=:4096:8 before it starts"
            raise HeddleError(f"deterministic = true: {advice}") from error
        raise HeddleError(f"deterministic = true: {str(error).split(',')[0]} here: leave it out") from error
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        memory.fill_uninitialized_memory = fills
