"""Times work in turns, and measures the memory that it takes."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from heddle.display import cut
from heddle.errors import ran_out_of_memory
from heddle.train.runtime import give_back, resident

MOST_STEPS = 50  # of a turn
OUT_OF_MEMORY = "out of memory"
LONGEST = 80  # characters of a problem
Result = TypeVar("Result")


@dataclass(frozen=True)
class Problem:
    """Why a contender was not measured, in a few words."""

    text: str


def attempt(call: Callable[[], Result]) -> Result | Problem:
    """The result of a call, or the problem if it fails: compilers and other libraries raise errors of every kind."""
    try:
        return call()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return Problem(
            OUT_OF_MEMORY if ran_out_of_memory(error) else cut(f"{type(error).__name__}: {lines[0]}", LONGEST)
        )


@dataclass(frozen=True)
class Work:
    """What a contender does again and again.

    Attributes:
        step: does it once; the device may still compute when it returns.
        tensors: the weights, and what an optimizer holds beside them.
        parameters: number of the model's parameters.
    """

    step: Callable[[], object]
    tensors: Callable[[], Iterable[Tensor]]
    parameters: int


def finish(device: torch.device) -> None:
    """Wait until the device has computed everything."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def seconds_of(work: Work, device: torch.device, steps: int = 1) -> float:
    """Seconds of a step: one wait for the device after all of them."""
    finish(device)
    began = time.perf_counter()
    for _ in range(steps):
        work.step()
    finish(device)
    return (time.perf_counter() - began) / steps


def steps_within(seconds: float, one: float) -> int:
    """Steps that take about this long together, at least one."""
    return max(1, min(MOST_STEPS, ceil(seconds / one)))


def take_turns(
    works: Mapping[str, Work], steps: Mapping[str, int], rounds: int, device: torch.device, park: bool
) -> dict[str, list[float] | Problem]:
    """Seconds of a step of each, round after round.

    Args:
        park: whether only the one whose turn it is has its tensors on the device; then its first step is not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    problems: dict[str, Problem] = {}

    def turn(name: str) -> float:
        with on(device, works[name]) if park else nullcontext():
            if park:
                works[name].step()
            return seconds_of(works[name], device, steps[name])

    for _ in range(rounds):
        for name in (each for each in works if each not in problems):
            taken = attempt(partial(turn, name))
            if isinstance(taken, Problem):
                problems[name] = taken
            else:
                seconds[name].append(taken)
    return {**seconds, **problems}


@contextmanager
def on(device: torch.device, work: Work) -> Iterator[None]:
    """While this holds, a contender's tensors are on the device; before and after, on the CPU."""
    try:
        move(work, device)
        yield
    finally:
        move(work, torch.device("cpu"))


def move(work: Work, device: torch.device) -> None:
    """Move a contender's tensors in place, so that everything which refers to them still does."""
    for tensor in {id(each): each for each in work.tensors()}.values():
        tensor.data = tensor.data.to(device)


def held(work: Work) -> int:
    """Bytes of a contender's tensors."""
    return sum(each.nbytes for each in {id(each): each for each in work.tensors()}.values())


def growth(call: Callable[[], object], device: torch.device) -> int | None:
    """The most bytes that a call takes beside what there was before: of CUDA's allocator, or on Linux of the process.

    None where neither is known.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        finish(device)
        return torch.cuda.max_memory_allocated(device) - before
    before = resident()
    is_known = device.type == "cpu" and _forget_peak()
    call()
    return _peak() - before if is_known else None


def _forget_peak() -> bool:
    """Let this process's peak of resident memory begin anew; whether the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def forget(device: torch.device) -> None:
    """Forget what was compiled, and give back its memory; else torch compiles the next model for all shapes, or not at all."""
    torch.compiler.reset()
    release(device)


def release(device: torch.device) -> None:
    """Give back the memory of what nothing refers to any more."""
    gc.collect()
    give_back()
    if device.type == "cuda":
        torch.cuda.empty_cache()
