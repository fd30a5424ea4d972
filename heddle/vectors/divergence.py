"""The check that training did not diverge."""

import math

from heddle.errors import HeddleError


def finite(loss: float, epoch: int) -> float:
    """Check that the loss is finite, and return it.

    Raises:
        HeddleError: it is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise HeddleError(f"the vectors became NaN or infinite in epoch {epoch}; set a lower learning_rate")
    return loss
