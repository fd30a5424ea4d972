"""Progress messages from a thread next to long work: one call into a library can take minutes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 2.0  # seconds


@contextmanager
def heartbeat(say: Callable[[str], None], state: Callable[[], str], every: float | None = None) -> Iterator[None]:
    """Call ``say``, from a thread, with the progress of the work inside: ``state()`` and the seconds passed.

    Args:
        every: seconds between two lines; None: `EVERY`. Shorter work prints nothing.
    """
    start = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(EVERY if every is None else every):
            say(f"{state()}, {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
