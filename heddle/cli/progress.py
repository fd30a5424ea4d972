"""The progress of training, in a terminal or in a log."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heddle.cli.output import duration, estimate, metrics
from heddle.config.saved import Chosen
from heddle.tasks.extent import Extent
from heddle.train.length import SHARE
from heddle.train.live import Pace, ordinary
from heddle.train.report import Report

QUIET = 10.0  # seconds between lines without a terminal
LATE = 1.2  # times the planned duration; from here on a run reports that it is slow
LEAST = 5.0  # seconds by which it must miss its plan to report so


class Progress:
    """A reader of reports: one live line in a terminal, a line every `QUIET` seconds in a log; evaluations and samples stay.

    After a tenth of the steps it says whether they are much slower than measured before the run. The number of steps stays,
    so that a run is a function of its config; the run just takes longer.
    """

    def __init__(self, console: Console, chosen: Chosen, done: int) -> None:
        self.console = console
        self.done = done
        self.steps = chosen.steps
        self.began = time.monotonic()
        self.spoke = self.began
        self.pace = Pace(done)
        self.rate = self.measured = chosen.tokens_per_second
        self.share = 0.0
        self.times: list[tuple[float, float]] = []  # seconds that each step so far should have taken, and did take
        self.seconds = 0.0  # of the last step
        self.judged = False
        self.loss: float | None = None
        self.experts = ""
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
            self.seconds = report.speed["seconds"]
            self._judge(report)
            self.experts = experts(report.values)
            line = "  ".join(filter(None, (self._line(report.step), self.experts)))
            if self.live:
                self.live.update(Text(line))
            elif time.monotonic() - self.spoke > QUIET:
                self._say(line)
        else:
            values = dict(report.values)
            scored = estimate(values.pop("validation_loss"), values.pop("validation_error"))
            what = f"step {report.step}: validation loss {scored}"
            parts = (what, metrics(values), Extent.summarise_counts(values), self.experts)
            self._say(", ".join([*filter(None, parts), f"after {duration(time.monotonic() - self.began)}"]))
            if report.sample is not None:
                self._say(f"  sample: {report.sample!r}")

    def _judge(self, report: Report) -> None:
        """Report, once, by how much the run will miss its plan. The first step does not count, nor one that compiles."""
        seconds, steps = report.speed["seconds"], self.steps - self.done
        if self.judged:
            return
        if report.step > self.done + 1:
            self.times.append((report.speed["tokens_per_second"] * seconds / self.measured, seconds))
        if not self.times or report.step - self.done < steps / 10:
            return
        self.judged = True
        most = max(ordinary(took for _, took in self.times))
        counted = [pair for pair in self.times if pair[1] <= most]
        expected, taken = (sum(part) for part in zip(*counted, strict=True))
        slower, planned = taken / expected, expected / len(counted) * steps / SHARE
        if slower > LATE and (slower - 1) * planned > LEAST:
            self._say(
                f"steps are {slower:.1f} times slower than measured before the run: about {duration(slower * planned)} "
                f"instead of {duration(planned)}; the number of steps stays {self.steps}"
            )

    def _line(self, step: int) -> str:
        left = self.pace.left(step, self.steps, self.seconds)
        return (
            f"step {step}/{self.steps}  loss {self.loss:.3f}  {self.rate:,.0f} tokens/s  "
            f"{self.share:.0%} of measured peak" + ("" if left is None else f"  {duration(left)} left")
        )

    def _say(self, line: str) -> None:
        self.spoke = time.monotonic()
        self.console.print(line, markup=False)


def experts(values: Mapping[str, float]) -> str:
    """How evenly the experts are used, in a few words; empty for a model without experts."""
    if "expert_entropy" not in values:
        return ""
    return f"experts: entropy {values['expert_entropy']:.2f}, {values['dead_experts']:.0f} dead"
