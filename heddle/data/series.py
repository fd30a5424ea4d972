"""Linear autoregression, the simplest sequence model: the next value is a linear function of the last ones."""

import numpy as np
import numpy.typing as npt

from heddle.errors import HeddleError

Numbers = npt.NDArray[np.float64]


def autoregression(series: npt.ArrayLike, order: int) -> Numbers:
    """Weights w [order] that minimise Σ_t (x_t - Σ_k w_k x_{t-k})², k = 1 … order (L0-03; golden `linear_autoregression`).

    If several solutions are equally good, as for a constant series, the one with the smallest norm is returned.

    Args:
        series: x, at least 2 · order numbers, oldest first.
        order: how many past values to use.

    Raises:
        HeddleError: the series is too short, not one-dimensional or not finite; the order is below 1.
    """
    values = _numbers(series, "the series")
    if order < 1:
        raise HeddleError(f"order must be at least 1, not {order}")
    if len(values) < 2 * order:
        raise HeddleError(
            f"the series has {len(values)} values, but {order} weights need at least {2 * order}: "
            "give a longer series or a smaller order"
        )
    past = np.lib.stride_tricks.sliding_window_view(values[:-1], order)[:, ::-1]
    return np.asarray(np.linalg.lstsq(past, values[order:], rcond=None)[0], dtype=np.float64)


def predict(weights: npt.ArrayLike, series: npt.ArrayLike, steps: int = 1) -> Numbers:
    """Predict the next `steps` values [steps], each from the last values, which may include earlier predictions.

    Args:
        weights: w [order], the weight of the newest value first.
        series: at least `order` numbers, oldest first.
        steps: how many values to predict.

    Raises:
        HeddleError: the series is shorter than the weights, a number is not finite, or `steps` is negative.
    """
    w, values = _numbers(weights, "the weights"), _numbers(series, "the series")
    if len(values) < len(w):
        raise HeddleError(
            f"the series has {len(values)} values, but {len(w)} weights need as many: give a longer series"
        )
    if steps < 0:
        raise HeddleError(f"steps must be at least 0, not {steps}")
    known = np.concatenate((values[len(values) - len(w) :], np.empty(steps)))
    for t in range(len(w), len(known)):
        known[t] = w @ known[t - len(w) : t][::-1]
    return known[len(w) :]


def _numbers(values: npt.ArrayLike, what: str) -> Numbers:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise HeddleError(f"{what} must contain only numbers") from None
    if numbers.ndim != 1:
        raise HeddleError(f"{what} must be one list of numbers, not {numbers.ndim}-dimensional")
    if not np.isfinite(numbers).all():
        raise HeddleError(f"{what} must be finite: fill in or leave out NaN and infinite values")
    return numbers
