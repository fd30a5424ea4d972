"""What processes that train together tell each other beside the collectives: notes in torchrun's key-value store.

A launcher such as torchrun may start processes again after one has ended. Its store stays, with the addresses of processes that are
gone. Each start of all processes, a generation, therefore has notes of its own. `call_roll` finds the generation:

1. Rank 0 counts a new one.
2. Every rank writes its name into the newest one that it sees.
3. Rank 0 writes the list of all names, the roll. A rank that does not read its own name there looks for a newer generation.

The number of a generation is not that of torchrun's restarts, which each machine counts for itself.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from threading import Event, Thread
from typing import Protocol, TypeVar

import torch.distributed as dist

from heddle.errors import HeddleError

Result = TypeVar("Result")

SLOWEST = 0.5  # seconds between two looks at a note that is not there yet
STOPPED = "was stopped"
COMPLAINING = 3.0  # seconds in which every rank that still runs notices that a collective has failed


class Store(Protocol):
    """What is used here of torch's stores."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...


class Lost(HeddleError):
    """Other processes have ended, hang or have failed.

    Attributes:
        speaks: whether this process tells it the user: rank 0 or, without it, the first rank that is left.
    """

    def __init__(self, problem: str, speaks: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.speaks = problem, speaks


@dataclass(frozen=True)
class Member:
    """One of the processes.

    Attributes:
        rank: its number.
        host: its machine.
        process: its number there.
        key: random, so that no other process has it.
    """

    rank: int
    host: str
    process: int
    key: str

    @classmethod
    def this(cls, rank: int) -> "Member":
        """This process."""
        return cls(rank, socket.gethostname(), os.getpid(), secrets.token_hex(8))

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (process {self.process})"


class Board:
    """The notes of one generation.

    Args:
        job: notes that all generations see.
        number: of the generation, from 1.
        members: all processes, by rank.
        rank: this one's.
        start: seconds to wait for what takes long: the others' start, and what rank 0 does alone.
        step: seconds to wait in a training step.

    Attributes:
        notes: the generation's.
        meetings: how often all ranks have waited for the leader.
        silent: a rank that gives no sign of life, in words.
        ends: whether this process shall end as soon as there is one.
        over: whether this process gives no more signs of life.
        terminal: the file number of the terminal.
    """

    def __init__(self, job: Store, number: int, members: list[Member], rank: int, start: float, step: float) -> None:
        self.job, self.number, self.members, self.rank = job, number, members, rank
        self.start, self.step = start, step
        self.notes = of_generation(job, number)
        self.meetings, self.silent, self.ends, self.over, self.terminal = 0, "", Event(), Event(), 2

    def note(self, name: str, text: str) -> None:
        """Leave a note for later generations."""
        self.job.set(f"note/{name}", text)

    def recall(self, name: str) -> str | None:
        """A note of an earlier generation."""
        key = f"note/{name}"
        return self.job.get(key).decode() if self.job.check([key]) else None

    def share(self, text: str) -> str:
        """The leader's text, on every rank; each waits for the leader."""
        self.meetings += 1
        key = f"meeting/{self.meetings}/answer"
        if self.rank == 0:
            self.notes.set(key, text)
            return text
        return self._await(key, 0)

    def agree(self, text: str, answer: Callable[[list[str]], str]) -> str:
        """What the leader answers to the texts of all ranks, on every rank."""
        key = f"meeting/{self.meetings + 1}/{{}}"
        if self.rank:
            self.notes.set(key.format(self.rank), text)
            return self.share("")
        others = range(1, len(self.members))
        return self.share(answer([text, *(self._await(key.format(rank), rank) for rank in others)]))

    def compare(self, facts: Mapping[str, object]) -> None:
        """Refuse to train with a rank that has another version of heddle or torch than rank 0, or another fact.

        Args:
            facts: values and tables of values by their names.

        Raises:
            HeddleError: on every rank, with the first of them.
        """
        texts = {name: str(fact) for name, fact in leaves({**versions(), **facts})}
        if problem := self.agree(json.dumps(texts), self._difference):
            raise HeddleError(problem)

    def _difference(self, texts: list[str]) -> str:
        """In words; empty if there is none."""
        first, *others = map(json.loads, texts)
        for member, other in zip(self.members[1:], others, strict=True):
            for name in {**first, **other}:
                here, there = first.get(name), other.get(name)
                if here != there:
                    return f"{member} has {name} = {there}, but rank 0 on {self.members[0].host} has {here}"
        return ""

    def fail(self, line: str) -> None:
        """Tell the others that this rank ends, and why; without a reason, a signal stopped it."""
        number = self.notes.add("failures", 1)
        self.notes.set(f"failure/{number}", json.dumps([self.rank, line]))

    def leave(self, seconds: float = COMPLAINING) -> None:
        """Tell that this rank needs the notes no more. Rank 0 waits for the others, at most so long: it may have the store."""
        self.over.set()
        self.notes.set(f"left/{self.rank}", "")
        end = time.monotonic() + seconds
        for member in self.members[1:] if self.rank == 0 else ():
            awaited(self.notes, f"left/{member.rank}", end - time.monotonic())

    def failure(self) -> str:
        """The first other rank that failed, and why, in words; empty if none did."""
        return self._failed()[1]

    def _failed(self) -> tuple[int, str]:
        """Its number, too."""
        rank, line = json.loads(self.notes.get("failure/1")) if self.notes.check(["failure/1"]) else (self.rank, "")
        return rank, "" if rank == self.rank else f"{self.members[rank]} {f'failed: {line}' if line else STOPPED}"

    def missing(self, hangs: bool) -> Lost:
        """Which ranks are gone, after a collective has failed here.

        Every rank that still runs notices it too, and calls this; those that do not are the ones that are gone.

        Args:
            hangs: whether an answer did not come in time, rather than a connection being closed.
        """
        try:
            return within(2 * COMPLAINING, lambda: self._missing(hangs))
        except TimeoutError:  # without a launcher, rank 0 has the store
            return Lost(f"{self.members[0]} or the launcher has not answered", speaks=self.rank == 1)
        except RuntimeError:
            return Lost(f"{self.members[0]} or the launcher has ended", speaks=self.rank == 1)

    def _missing(self, hangs: bool) -> Lost:
        self.notes.set(f"complaint/{self.rank}", "hangs" if hangs else "ended")
        keys, end = [f"complaint/{member.rank}" for member in self.members], time.monotonic() + COMPLAINING
        while time.monotonic() < end and not self.notes.check(keys):
            time.sleep(COMPLAINING / 30)
        here = [self.notes.check([key]) for key in keys]
        speaks, (rank, failure) = here.index(True) == self.rank, self._failed()
        if failure:
            return Lost(failure, speaks and rank > 0)  # of its own failure, rank 0 has spoken
        hangs = any(self.notes.get(key) == b"hangs" for key, complains in zip(keys, here, strict=True) if complains)
        gone = [str(member) for member, complains in zip(self.members, here, strict=True) if not complains]
        if not gone:
            return Lost(f"all {len(here)} processes run, but the connection between them failed", speaks)
        names, has = " and ".join(gone), "has" if len(gone) == 1 else "have"
        wait = f"{names} {has} not answered for {self.step:g} s (step_timeout)"
        return Lost(wait if hangs else f"{names} {has} ended", speaks)

    def _await(self, key: str, rank: int) -> str:
        """A note that another rank writes."""
        try:
            if not awaited(self.notes, key, self.start, lambda: self.failure() or self.silent):
                raise Lost(f"{missing_after(self.start)}: {self.members[rank]}", speaks=self.rank == 1)
            return self.notes.get(key).decode()
        except Lost as error:  # rank 0 tells it, unless it is the one
            raise Lost(error.problem, error.speaks or (bool(self.silent) and self.rank == 1)) from None
        except RuntimeError:
            raise Lost(f"{self.members[0]} or the launcher has ended", speaks=self.rank == 1) from None


def versions() -> dict[str, str]:
    """Of heddle and torch."""
    return {name: import_module(name).__version__ for name in ("heddle", "torch")}


def leaves(table: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    """Every value of nested tables by its dotted name."""
    for name, value in table.items():
        yield from leaves(value, f"{path}{name}.") if isinstance(value, Mapping) else [(path + name, value)]


def awaited(notes: Store, key: str, seconds: float, problem: Callable[[], str] = str) -> bool:
    """Wait for a note, at most so long; whether it is there. Python handles signals meanwhile.

    Raises:
        Lost: there is a problem, so that it will not come.
    """
    began = time.monotonic()
    while not notes.check([key]):
        if line := problem():
            raise Lost(line)
        waited = time.monotonic() - began
        if waited > seconds:
            return False
        time.sleep(min(SLOWEST, 0.01 + waited / 20, max(0.01, seconds - waited)))
    return True


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """What a call returns that may wait for a store without end. A signal does not interrupt it, as a launcher sends one then.

    Raises:
        TimeoutError: it did not return in time. Nothing else may then use its connection.
    """
    results, errors, done = list[Result](), list[Exception](), Event()

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)
        done.set()

    Thread(target=work, daemon=True).start()
    end = time.monotonic() + seconds
    while not done.is_set() and (left := end - time.monotonic()) > 0:
        with suppress(KeyboardInterrupt):
            done.wait(left)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def missing_after(seconds: float) -> str:
    """In words."""
    return f"missing after {seconds:g} s (start_timeout)"


def of_generation(job: Store, number: int) -> Store:
    """The notes of one generation."""
    return part_of(f"generation/{number}", job)


def part_of(prefix: str, store: Store) -> Store:
    """The part of a store whose names have a prefix."""
    part: Store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined, arg-type]
    return part


def call_roll(job: Store, rank: int, count: int, start: float, step: float) -> Board:
    """Wait until all ranks are here.

    Raises:
        Lost: one did not come in time.
    """
    this = Member.this(rank)
    return _lead(job, this, count, start, step) if rank == 0 else _follow(job, this, start, step)


def _lead(job: Store, this: Member, count: int, start: float, step: float) -> Board:
    number = int(job.add("generations", 1))
    notes, end = of_generation(job, number), time.monotonic() + start
    job.set("newest", str(number))
    absent = [rank for rank in range(1, count) if not awaited(notes, f"here/{rank}", max(0.0, end - time.monotonic()))]
    if absent:
        which = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        problem = f"{missing_after(start)}: {which} of {count}"
        notes.set("roll", json.dumps(problem))
        raise Lost(problem, speaks=True)
    members = [this, *(Member(**json.loads(notes.get(f"here/{rank}"))) for rank in range(1, count))]
    notes.set("roll", json.dumps([asdict(member) for member in members]))
    return Board(job, number, members, 0, start, step)


def _follow(job: Store, this: Member, start: float, step: float) -> Board:
    began, written = time.monotonic(), 0
    while time.monotonic() - began < start + COMPLAINING:  # rank 0 says who is missing
        if not awaited(job, "newest", start):
            break
        number = int(job.get("newest"))
        notes = of_generation(job, number)
        if number != written:
            notes.set(f"here/{this.rank}", json.dumps(asdict(this)))
            written = number
        if notes.check(["roll"]):
            roll = json.loads(notes.get("roll"))
            if isinstance(roll, str):
                raise Lost(roll)
            if roll[this.rank]["key"] == this.key:
                return Board(job, number, [Member(**each) for each in roll], this.rank, start, step)
        time.sleep(min(SLOWEST, 0.01 + (time.monotonic() - began) / 20))
    raise Lost(f"{missing_after(start)}: rank 0", speaks=this.rank == 1)
