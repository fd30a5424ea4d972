"""Progress reports of long training, and the check that it did not diverge."""

import math
import time
from collections.abc import Callable

from heddle.errors import HeddleError

PATIENCE, PAUSE = 2.0, 5.0  # seconds before the first line, and between two


class Pace:
    """Reports progress after two seconds, and then every five; shorter work stays silent.

    Args:
        tell: called with each line; None: no reports.
    """

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self.tell = tell
        self.began = time.monotonic()
        self.due = self.began + PATIENCE

    def report(self, done: int, line: Callable[[float], str]) -> None:
        """Report the line for the current rate, in items per second, if it is due."""
        now = time.monotonic()
        if self.tell is not None and now >= self.due:
            self.tell(line(done / (now - self.began)))
            self.due = now + PAUSE


def finite(loss: float, epoch: int) -> float:
    """Check that the loss is finite, and return it.

    Raises:
        HeddleError: it is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise HeddleError(f"the vectors became NaN or infinite in epoch {epoch}; set a lower learning_rate")
    return loss
