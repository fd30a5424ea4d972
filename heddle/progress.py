"""Progress of long work: lines every few seconds, a line that changes in a terminal, the time left."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from statistics import mean, median
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

EVERY = 2.0  # seconds between the lines of a heartbeat
PATIENCE, PAUSE = 2.0, 5.0  # seconds before the first line about a rate, and between two
COMPILED = 5.0  # times the median step from which on a step has compiled something
LATELY = 200  # steps that the time left is judged by
STARVED = 0.1  # share of a step that waits for its batch, from which on it is worth a word


class Interval:
    """When a line is due: once `first` seconds have passed, and then `every` seconds after the last line."""

    def __init__(self, first: float, every: float) -> None:
        self.every = every
        self.next = time.monotonic() + first

    def due(self) -> bool:
        """Whether a line is due; if so, it counts as printed."""
        if time.monotonic() < self.next:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Count from now on."""
        self.next = time.monotonic() + self.every


class Pace:
    """Tells how fast a loop is: after two seconds, and then every five; shorter work stays silent.

    Args:
        tell: called with each line; None: no lines.
    """

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self.tell = tell
        self.began = time.monotonic()
        self.interval = Interval(PATIENCE, PAUSE)

    def report(self, done: int, line: Callable[[float], str]) -> None:
        """Tell the line for the current rate, in items per second, if it is due."""
        if self.tell is not None and self.interval.due():
            self.tell(line(done / (time.monotonic() - self.began)))


@contextmanager
def heartbeat(tell: Callable[[str], None], state: Callable[[], str], every: float | None = None) -> Iterator[None]:
    """Tell, from a thread, the progress of the work inside: `state()` and the seconds passed.

    The thread speaks during one call into a library, too, which can take minutes.

    Args:
        every: seconds between two lines; None: `EVERY`. Shorter work prints nothing.
    """
    start = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(EVERY if every is None else every):
            tell(f"{state()}, {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def counting(tell: Callable[[str], None], state: Callable[[int], str]) -> Iterator[Callable[[int, int], None]]:
    """A heartbeat about a count: yield a function (done, total) to call with it, and tell `state(done)`."""
    count = 0

    def update(done: int, total: int) -> None:
        nonlocal count
        count = done

    with heartbeat(tell, lambda: state(count)):
        yield update


class LiveLine:
    """A line that changes in a terminal or a notebook; elsewhere, a line whenever one is due.

    Args:
        console: where to print.
        first, every: seconds before the first line that is printed, and between two.
    """

    def __init__(self, console: "Console", first: float, every: float) -> None:
        self.console = console
        self.interval = Interval(first, every)
        self.live: Live | None = None

    def update(self, line: str) -> None:
        """Show the line in place of the last one, or print it if one is due."""
        # In a notebook, rich changes a line by a widget, and warns at every line if there are no widgets.
        if self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets")):
            from rich.live import Live
            from rich.text import Text

            if self.live is None:
                self.live = Live(console=self.console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(Text(line))
        elif self.interval.due():
            self.console.print(line, markup=False)

    def print(self, line: str) -> None:
        """Print a line that stays."""
        self.interval.restart()
        self.console.print(line, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()


def ordinary(seconds: Iterable[float]) -> list[float]:
    """The times of steps without those that compiled: such a step takes many times as long as the median."""
    times = [*seconds]
    return [each for each in times if each <= COMPILED * median(times)]


class TimeLeft:
    """The time left: ordinary steps of late, and the pauses between steps, such as evaluations. The first step does not count.

    Args:
        done: steps that were done before.
    """

    def __init__(self, done: int = 0) -> None:
        self.first = done + 1
        self.ended: float | None = None  # when the last step ended
        self.times: deque[float] = deque(maxlen=LATELY)
        self.pauses = 0.0

    def after(self, step: int, steps: int, seconds: float) -> float | None:
        """Seconds from the end of this step to that of the last one; None after the first step, which says nothing of others.

        Args:
            step: its number.
            steps: how many there are.
            seconds: that it took.
        """
        now = time.monotonic()
        if self.ended is None or step <= self.first:
            self.first, self.ended = step, now
            return None
        self.pauses += max(0.0, now - self.ended - seconds)
        self.ended = now
        self.times.append(seconds)
        return (mean(ordinary(self.times)) + self.pauses / (step - self.first)) * (steps - step)


class DataWait:
    """The share of late steps that waited for their batches."""

    def __init__(self) -> None:
        self.share = 0.0

    def after(self, waited: float, seconds: float) -> str:
        """In words, after a step of so many seconds; empty if the batches come fast enough."""
        self.share = 0.9 * self.share + 0.1 * waited / seconds
        return f"{self.share:.0%} waiting for data" if self.share > STARVED else ""
