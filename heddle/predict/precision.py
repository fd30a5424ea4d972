"""The precision in which a run's model predicts: as requested, or what it was trained or published in."""

from pathlib import Path

import torch

from heddle.account.machine import check_units, fast_precision, usable_precision
from heddle.config.saved import SavedConfig
from heddle.model.precision import DTYPES
from heddle.weights.checkpoints import read_manifest
from heddle.weights.files import MANIFEST


def predicting_precision(
    run: Path, config: SavedConfig, device: torch.device, requested: str | None
) -> tuple[str, str]:
    """The precision, and a line for the user if it is not simply that of the training.

    Args:
        run: the run's directory.
        config: its config.
        device: where it predicts.
        requested: `fp32` or `bf16`; `auto`: what a run was trained in, and imported weights were published in, where the device
            computes it fast, else fp32; None: the same, but imported weights in fp32, for what is compared digit by digit.

    Raises:
        HeddleError: the device has no units for the precision that is requested.
    """
    if requested in DTYPES:
        check_units(requested, False, device)
        return requested, ""
    if config.chosen is not None:
        trained = config.chosen.precision
        precision = usable_precision(trained, device)
        slow = f"{run} was trained in {trained}, which is more than twice as slow as {precision} on this machine"
        return precision, "" if precision == trained else f"{slow}: using {precision}"
    published = published_precision(run) if requested == "auto" else "fp32"
    precision = fast_precision(published, device)
    slow = "" if precision == published else ", in which this machine is not fast"
    return precision, "" if published == "fp32" else f"{run} was published in {published}{slow}: using {precision}"


def published_precision(run: Path) -> str:
    """The precision that imported weights were published in; fp32 where the run does not say it."""
    return str(read_manifest(run).get("precision", "fp32")) if (run / MANIFEST).is_file() else "fp32"
