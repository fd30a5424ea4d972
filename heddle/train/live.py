"""The progress of a training in memory, for people: one line on standard error."""

import time

from rich.console import Console

from heddle.display import memory
from heddle.progress import DataWait, LiveLine, TimeLeft
from heddle.tasks.extent import Extent
from heddle.train.report import Report

SILENT = 2.0  # seconds after which a training speaks
APART = 10.0  # seconds between lines without a terminal


class ProgressLine(LiveLine):
    """A reader of reports: after `SILENT` seconds, a live line in a terminal or a notebook, else a line every `APART` seconds."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True), SILENT, APART)
        self.began = time.monotonic()
        self.time_left = TimeLeft()
        self.data_wait = DataWait()
        self.validation = ""

    def __call__(self, report: Report) -> None:
        """Show a step or an evaluation."""
        if "loss" not in report.values:
            lacking = Extent.summarise_counts(report.values)
            self.validation = f"  validation loss {report.values['validation_loss']:.3f}"
            self.validation += f" ({lacking})" if lacking else ""
            return
        left = self.time_left.after(report.step, report.steps, report.speed["seconds"])
        waiting = self.data_wait.after(report.speed["data_seconds"], report.speed["seconds"])
        if time.monotonic() - self.began < SILENT:
            return
        line = f"step {report.step}/{report.steps}  loss {report.values['loss']:.3f}{self.validation}"
        remaining = "" if left is None else f"{left:.0f} s left"
        self.update("  ".join(filter(None, (line, memory(report.speed), remaining, waiting))))
