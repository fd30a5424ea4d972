"""Saying that long work goes on, from beside it: one call into a library can take minutes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 2.0


@contextmanager
def heartbeat(say: Callable[[str], None], state: Callable[[], str], every: float | None = None) -> Iterator[None]:
    """Tell ``say``, from a thread, how far the work inside is: what ``state()`` says, and the seconds passed.

    Args:
        every: seconds between two lines; None: `EVERY`. Work that ends sooner says nothing.
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
