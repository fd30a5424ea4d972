"""A sign of life of every process, so that a stopped process or machine is noticed by its name, whatever the others wait for."""

import atexit
import os
import threading
import time
from contextlib import suppress

from heddle.parallel.board import Board, Store, within

BEAT = 1.0  # seconds
AFTER = 5.0  # seconds by which a collective that fails in time is first


class Heartbeat(threading.Thread):
    """Writes a sign of life every second, and watches others': rank 0 all of them, the others rank 0.

    A collective that waits for a stopped process fails by itself after `board.step` seconds. But a process may wait much longer for
    rank 0, while it evaluates or saves; and NCCL ends a process silently. While `board.ends` is set, this thread names the silent
    rank and ends the process, if nothing else did.

    Args:
        notes: the generation's, by a connection of this thread's own, since a call that waits keeps others from it.
        board: the same, with the names and the time to wait.
    """

    def __init__(self, notes: Store, board: Board) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.notes, self.board = notes, board
        self.watched = [member for member in board.members if (member.rank == 0) != (board.rank == 0)]
        self.beats: dict[int, tuple[bytes, float]] = {}  # the last sign of each, and when it was first seen

    def run(self) -> None:
        """Until the process ends, or the store does."""
        atexit.register(self.stop)
        while not self.board.over.wait(BEAT):
            try:
                self.board.silent = within(self.board.step + AFTER, self.beat)
            except TimeoutError:
                self.board.silent = f"{self.board.members[0]} or the launcher {self.silence()}"
            except RuntimeError:  # the store is gone; collectives will say so
                return
            if self.board.silent and self.board.ends.is_set():
                self.end()

    def beat(self) -> str:
        """Give a sign of life, and return what `silent` does."""
        self.notes.set(f"beat/{self.board.rank}", str(time.monotonic()))
        return self.silent(time.monotonic())

    def silence(self) -> str:
        """In words."""
        return f"has given no sign of life for {self.board.step:g} s (step_timeout)"

    def silent(self, now: float) -> str:
        """A rank that has given no sign of life for too long, in words; empty if there is none."""
        for member in self.watched:
            key = f"beat/{member.rank}"
            sign = self.notes.get(key) if self.notes.check([key]) else b""
            if sign != self.beats.setdefault(member.rank, (sign, now))[0]:
                self.beats[member.rank] = sign, now
            elif now - self.beats[member.rank][1] > self.board.step + AFTER:
                return f"{member} {self.silence()}"
        return ""

    def end(self) -> None:
        """End the process, whose main thread waits for what will not come."""
        for place in {2, self.board.terminal if self.board.rank == 1 else 2}:  # rank 0 speaks, unless it is the one
            with suppress(OSError):
                os.write(place, f"heddle: {self.board.silent}\n".encode())
        os._exit(2)

    def stop(self) -> None:
        """Before the interpreter ends."""
        self.board.over.set()
        self.join(2 * BEAT)
