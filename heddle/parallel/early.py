"""An error that ends a process, also before it has joined the others. Imports torch only where several must hear of it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from heddle.errors import HeddleError, problems_of
from heddle.parallel.launcher import number, process_count

EARLY = 30.0  # seconds in which a process with an error waits for the others to join, and rank 0 for them to leave
SPEAKING = 2.0  # seconds in which rank 0 says why all of them end


def report(message: str, speak: Callable[[], None], code: int) -> None:
    """Report the error that ends this process; of several that have not joined each other yet, once.

    Rank 0 speaks. Another rank tells it by their notes, since it may be the only one with this error. It speaks if that fails.

    Args:
        message: the error, in a line.
        speak: prints it.
        code: with which this process exits.
    """
    if problems_of(process_count) or problems_of(lambda: number("RANK", 0)) or process_count() == 1 or has_tried():
        speak()
        return
    leads = number("RANK") == 0
    if leads:
        speak()
    if code != 2:  # a signal, which the launcher sends to all
        return

    def leave(signal_number: int, frame: FrameType | None) -> None:
        os._exit(code)

    before = signal.signal(signal.SIGTERM, leave)  # the launcher ends the others once one of them has ended
    try:
        if not tell(message) and not leads:
            speak()
    finally:
        signal.signal(signal.SIGTERM, before)


def has_tried() -> bool:
    """Whether this process has tried to join the others, which report then what is wrong (see `heddle.parallel.output`)."""
    if "heddle.parallel.join" not in sys.modules:
        return False
    from heddle.parallel.join import process

    return process().tried


def tell(message: str) -> bool:
    """Join the others to tell them why this process ends; whether they know it."""
    from heddle.parallel.join import process

    try:
        board = process().join(number("RANK"), process_count(), EARLY, EARLY)
        board.fail(message)
        board.leave(EARLY)  # a slow one still has to read the notes, and would report the error again
    except (HeddleError, RuntimeError):
        return False
    if board.rank:
        time.sleep(SPEAKING)  # the launcher ends rank 0 once this process has ended
    return True
