"""Where a model runs."""

import torch

from heddle.errors import HeddleError, did_you_mean

DEVICES = ("auto", "cpu", "cuda", "mps")


def pick_device(name: str = "auto") -> torch.device:
    """The device of a name; `auto` is the first of cuda, mps and cpu that this machine has.

    Raises:
        HeddleError: the name is unknown, or this machine (or this torch) has no such device.
    """
    if name not in DEVICES:
        raise HeddleError(f"device = {name!r} is not one of {', '.join(DEVICES)}.{did_you_mean(name, DEVICES)}")
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, there in present.items() if there))
    if not present[name]:
        others = " or ".join(device for device, there in present.items() if there)
        raise HeddleError(
            f"device = {name!r}: torch {torch.__version__} finds no such device here; take {others} or auto"
        )
    return torch.device(name)
