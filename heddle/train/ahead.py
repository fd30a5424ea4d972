"""The next step's batch, made in a thread while a device computes this one's."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from heddle.data.batch import Batch


class Ahead:
    """Makes batches one step ahead, in a thread that ends with this object.

    It suits a device that computes while the host waits. A CPU would compute both, so that nothing would be gained.

    Args:
        make: makes the batch of a step, on the host; the same batch whenever it is asked.
        steps: how many steps there are.
    """

    def __init__(self, make: Callable[[int], Batch], steps: int) -> None:
        self.make, self.steps = make, steps
        self.thread = ThreadPoolExecutor(1, "heddle-batches")
        self.step, self.batch = -1, Future[Batch]()

    def get(self, step: int) -> Batch:
        """The batch of a step; the thread goes on to the next one.

        Raises:
            Exception: what `make` raises for this step.
        """
        batch = self.batch.result() if step == self.step else self.make(step)
        if step + 1 < self.steps:
            self.step, self.batch = step + 1, self.thread.submit(self.make, step + 1)
        return batch
