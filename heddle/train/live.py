"""The progress of a training in memory, for people: one line on standard error."""

import time
from collections import deque
from collections.abc import Iterable
from statistics import mean, median
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heddle.tasks.extent import Extent
from heddle.train.report import Report

SILENT = 2.0  # seconds after which a training speaks
APART = 10.0  # seconds between lines without a terminal
COMPILED = 5.0  # times the median step from which on a step has compiled something
LATELY = 200  # steps that the time left is judged by


def ordinary(seconds: Iterable[float]) -> list[float]:
    """The times of steps without those that compiled: such a step takes many times as long as the median."""
    times = [*seconds]
    return [each for each in times if each <= COMPILED * median(times)]


class Pace:
    """The time left: ordinary steps of late, and the pauses between steps, such as evaluations. The first step does not count.

    Args:
        done: steps that were done before.
    """

    def __init__(self, done: int = 0) -> None:
        self.first = done + 1
        self.ended: float | None = None  # when the last step ended
        self.times: deque[float] = deque(maxlen=LATELY)
        self.pauses = 0.0

    def left(self, step: int, steps: int, seconds: float) -> float | None:
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


class ProgressLine:
    """A reader of reports: after `SILENT` seconds, a live line in a terminal or a notebook, else a line every `APART` seconds."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.began = time.monotonic()
        self.spoke = self.began
        self.pace = Pace()
        self.validation = ""

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, report: Report) -> None:
        """Show a step or an evaluation."""
        if "loss" not in report.values:
            lacking = Extent.summarise_counts(report.values)
            self.validation = f"  validation loss {report.values['validation_loss']:.3f}"
            self.validation += f" ({lacking})" if lacking else ""
            return
        now, left = time.monotonic(), self.pace.left(report.step, report.steps, report.speed["seconds"])
        if now - self.began < SILENT:
            return
        line = f"step {report.step}/{report.steps}  loss {report.values['loss']:.3f}{self.validation}"
        line += "" if left is None else f"  {left:.0f} s left"
        if self.console.is_terminal or self.console.is_jupyter:
            if self.live is None:
                self.live = Live(console=self.console, refresh_per_second=4, transient=True)
                self.live.start()
            self.live.update(Text(line))
        elif now - self.spoke > APART or self.spoke == self.began:
            self.spoke = now
            self.console.print(line, markup=False)
