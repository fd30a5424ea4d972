"""What a running training looks like in a terminal, or in a log."""

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heddle.cli.say import duration, estimate
from heddle.config.run import Chosen
from heddle.train.journal import Report

QUIET = 10.0  # seconds between lines where there is no terminal


class Progress:
    """A reader of reports: one live line in a terminal, a line now and then in a log; evaluations and samples stay.

    Time left is what the steps so far took on average, so pauses for evaluations count.
    """

    def __init__(self, console: Console, chosen: Chosen, done: int) -> None:
        self.console = console
        self.done = done
        self.steps = chosen.steps
        self.began = time.monotonic()
        self.spoke = self.began
        self.rate = chosen.tokens_per_second
        self.share = 0.0
        self.loss: float | None = None
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, report: Report) -> None:
        if "loss" in report.values:
            loss = report.values["loss"]
            self.loss = loss if self.loss is None else 0.9 * self.loss + 0.1 * loss
            self.rate = 0.9 * self.rate + 0.1 * report.speed["tokens_per_second"]
            self.share = report.speed["share_of_peak"]
            line = self._line(report.step)
            if self.live:
                self.live.update(Text(line))
            elif time.monotonic() - self.spoke > QUIET:
                self._say(line)
        else:
            values = report.values
            self._say(
                f"step {report.step}: validation loss {estimate(values['validation_loss'], values['validation_error'])}, "
                f"{values['bits_per_byte']:.4f} bits per byte, after {duration(time.monotonic() - self.began)}"
            )
            if report.sample is not None:
                self._say(f"  it writes: {report.sample!r}")

    def _line(self, step: int) -> str:
        passed = time.monotonic() - self.began
        left = passed / max(1, step - self.done) * (self.steps - step)
        return (
            f"step {step}/{self.steps}  loss {self.loss:.3f}  {self.rate:,.0f} tokens/s  "
            f"{self.share:.0%} of measured peak  {duration(left)} left"
        )

    def _say(self, line: str) -> None:
        self.spoke = time.monotonic()
        self.console.print(line, markup=False)
