"""Curves of a training: losses, the learning rate and the gradient's norm over the steps."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from heddle.checks import checked
from heddle.errors import HeddleError

# Colours that people with any colour vision tell apart (Okabe and Ito 2008); markers do the same without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SPAN = 50  # a training loss is smoothed over this part of the steps


def draw(names: Sequence[str], metrics: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    """Draw the curves of `plot_runs`; return matplotlib's `Figure`.

    Args:
        names: of the runs, for the legend.
        metrics: the lines of each run's metrics: a step and what was reported of it.

    Raises:
        HeddleError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeddleError("plots need matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 9), layout="constrained")
    losses, rates, norms = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    looks = zip(cycle(COLOURS), cycle(MARKERS), strict=False)
    for name, lines, (colour, marker) in zip(names, metrics, looks, strict=False):
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.3}
        steps = [line for line in lines if "loss" in line]
        at = [line["step"] for line in steps]
        sparse = {**style, "markevery": max(1, len(at) // 8), "markerfacecolor": "white"}
        losses.plot(at, smoothed([line["loss"] for line in steps]), label=f"{name}, training", **sparse)
        scored = [line for line in lines if "validation_loss" in line]
        losses.errorbar(
            [line["step"] for line in scored],
            [line["validation_loss"] for line in scored],
            [line["validation_error"] for line in scored],
            label=f"{name}, validation",
            linestyle="--",
            capsize=2,
            **style,
        )
        rates.plot(at, [line["learning_rate"] for line in steps], label=name, **sparse)
        norms.plot(at, [line["gradient_norm"] for line in steps], label=name, **{**sparse, "linewidth": 0.8})
    losses.set_ylabel("loss (nats per target)")
    rates.set_ylabel("learning rate")
    norms.set(ylabel="gradient norm", yscale="log", xlabel="step")
    for panel in (losses, rates, norms):
        panel.grid(alpha=0.3)
    losses.legend(fontsize="small", ncols=1 + (len(metrics) > 4))
    return figure


@checked()
def smoothed(values: Sequence[float]) -> list[float]:
    """An exponential moving average over a fiftieth of the values, without a bias towards the first (Kingma and Ba 2015, 3)."""
    keep = 1 - 1 / max(1, len(values) / SPAN)
    means, average, weight = [], 0.0, 0.0
    for value in values:
        average, weight = keep * average + (1 - keep) * value, keep * weight + (1 - keep)
        means.append(average / weight)
    return means
