"""Training progress in a terminal or in a log."""

import time
from collections.abc import Mapping

from rich.console import Console

from heddle.config.saved import Chosen
from heddle.display import duration, estimate, memory, metrics
from heddle.progress import DataWait, LiveLine, TimeLeft, ordinary
from heddle.tasks.extent import Extent
from heddle.train.length import SHARE
from heddle.train.report import Report

QUIET = 10.0  # seconds between lines without a terminal
LATE = 1.2  # slowdown from which a run warns that it is behind its plan
LEAST = 5.0  # seconds that the slowdown must cost for the warning


class Progress(LiveLine):
    """Prints training reports: one live line in a terminal, a line every `QUIET` seconds in a log.

    Evaluations and samples are always printed. After a tenth of the steps, a warning is printed if they are much slower than
    the plan measured. The number of steps does not change, since a run is a function of its config.

    Args:
        console: where to print.
        chosen: what was planned.
        done: steps that were done before.
        processes: how many train.
    """

    def __init__(self, console: Console, chosen: Chosen, done: int, processes: int = 1) -> None:
        super().__init__(console, QUIET, QUIET)
        self.processes = processes
        self.done = done
        self.steps = chosen.steps
        self.started = time.monotonic()
        self.time_left = TimeLeft(done)
        self.data_wait = DataWait()
        self.rate = self.measured = chosen.tokens_per_second
        self.share_of_peak = 0.0
        self.times: list[tuple[float, float]] = []  # expected and actual seconds of each step so far
        self.seconds = 0.0  # of the last step
        self.pace_checked = False
        self.loss: float | None = None
        self.experts = self.sending = ""

    def __call__(self, report: Report) -> None:
        if "loss" in report.values:
            loss = report.values["loss"]
            self.loss = loss if self.loss is None else 0.9 * self.loss + 0.1 * loss
            self.rate = 0.9 * self.rate + 0.1 * report.speed["tokens_per_second"]
            self.share_of_peak = report.speed["share_of_peak"]
            self.seconds = report.speed["seconds"]
            self._check_pace(report)
            self.experts = experts(report.values)
            waiting = self.data_wait.after(report.speed.get("data_seconds", 0.0), self.seconds)
            self.sending = collectives(report.speed) or self.sending
            self.update("  ".join(filter(None, (self._line(report), waiting, self.sending, self.experts))))
        else:
            values = dict(report.values)
            loss_text = estimate(values.pop("validation_loss"), values.pop("validation_error"))
            summary = f"step {report.step}: validation loss {loss_text}"
            parts = (summary, metrics(values), Extent.summarise_counts(values), self.experts)
            self.print(", ".join([*filter(None, parts), f"after {duration(time.monotonic() - self.started)}"]))
            if report.sample is not None:
                self.print(f"  sample: {report.sample!r}")

    def _check_pace(self, report: Report) -> None:
        """Warn once if the run is much slower than planned. The first step and steps that compile do not count."""
        seconds, steps = report.speed["seconds"], self.steps - self.done
        if self.pace_checked:
            return
        if report.step > self.done + 1:
            self.times.append((report.speed["tokens_per_second"] * seconds / self.measured, seconds))
        if not self.times or report.step - self.done < steps / 10:
            return
        self.pace_checked = True
        longest = max(ordinary(actual for _, actual in self.times))
        typical = [pair for pair in self.times if pair[1] <= longest]
        expected, actual = (sum(part) for part in zip(*typical, strict=True))
        slowdown, planned = actual / expected, expected / len(typical) * steps / SHARE
        if slowdown > LATE and (slowdown - 1) * planned > LEAST:
            self.print(
                f"steps are {slowdown:.1f} times slower than measured before the run: about {duration(slowdown * planned)} "
                f"instead of {duration(planned)}; the number of steps stays {self.steps}"
            )

    def _line(self, report: Report) -> str:
        left = self.time_left.after(report.step, self.steps, self.seconds)
        parts = (
            f"step {report.step}/{self.steps}",
            f"loss {self.loss:.3f}",
            f"{self.rate:,.0f} tokens/s",
            f"{self.share_of_peak:.0%} of measured peak",
            memory(report.speed, self.processes),
            "" if left is None else f"{duration(left)} left",
        )
        return "  ".join(filter(None, parts))


def collectives(speed: Mapping[str, float]) -> str:
    """The share of a step in which collectives ran; empty where that is not known."""
    seconds = speed.get("collective_seconds")
    return "" if seconds is None else f"{seconds / speed['seconds']:.0%} in collectives"


def experts(values: Mapping[str, float]) -> str:
    """Expert load on one line; empty for a model without experts."""
    if "expert_entropy" not in values:
        return ""
    return f"experts: entropy {values['expert_entropy']:.2f}, {values['dead_experts']:.0f} dead"
