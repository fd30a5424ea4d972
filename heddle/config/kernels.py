"""What each attention kernel can do, as one table, and which of them `auto` takes.

Configs refuse by it, stacks choose by it once per pass and way of attending, and the accounts of memory read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KernelName = Literal["auto", "reference", "blockwise", "plain", "sdpa", "flex"]
Drops = Literal["none", "inverted", "any"]


@dataclass(frozen=True)
class Capability:
    """What a kernel can do. Every kernel takes any mask and any bias; these differ in what else they take.

    Attributes:
        caps: whether it can cap scores.
        drops: which dropout of attention weights it can do: `none`, `inverted` with a mask for each element, as torch's
            fused kernel does, or `any`.
        square: whether it holds all scores of a head at once, whatever the mask.
    """

    caps: bool
    drops: Drops
    square: bool = False


CAPABILITIES: dict[str, Capability] = {
    "reference": Capability(caps=True, drops="any", square=True),
    "blockwise": Capability(caps=True, drops="none"),
    "plain": Capability(caps=True, drops="any"),
    "sdpa": Capability(caps=False, drops="inverted"),
    "flex": Capability(caps=True, drops="none"),
}

# Device type -> longest key sequence for which `plain` is faster than the others, as measured. A device without a row
# never takes `plain` for its speed.
PLAIN_UP_TO = {"cpu": 768}
BEYOND = ("sdpa", "blockwise", "plain")
"""What `auto` takes for longer sequences: the first of these that can do what the layer needs."""


@dataclass(frozen=True)
class Needs:
    """What a layer needs of its kernel.

    Attributes:
        cap: whether its scores are capped.
        drops: the dropout of its attention weights.
    """

    cap: bool = False
    drops: Drops = "none"


def together(needs: Iterable[Needs]) -> Needs:
    """What one kernel must be able to do for all of these layers."""
    every = list(needs)
    order: tuple[Drops, ...] = ("none", "inverted", "any")
    return Needs(any(each.cap for each in every), max((each.drops for each in every), key=order.index, default="none"))


def missing(kernel: str, needs: Needs) -> str | None:
    """What a kernel lacks of a layer's needs, `cap` or `drops`; None: nothing."""
    if kernel == "auto":
        return None
    can = CAPABILITIES[kernel]
    if needs.cap and not can.caps:
        return "cap"
    return None if needs.drops in ("none", can.drops) or can.drops == "any" else "drops"


def refusal(kernel: str, needs: Needs) -> str | None:
    """Why a layer with these needs cannot take a kernel, and what to do; None: it can."""
    lacks = missing(kernel, needs)
    if lacks == "cap":
        return f"kernel = {kernel!r} cannot cap scores: set kernel = 'auto', or leave out cap"
    if lacks == "drops" and CAPABILITIES[kernel].drops == "none":
        return f"kernel = {kernel!r} cannot drop attention weights: set kernel = 'auto', or dropout = 0"
    if lacks == "drops":
        return (
            f"kernel = {kernel!r} can only do inverted dropout with a mask for each element: set kernel = 'auto', or "
            "leave out dropout.style and dropout.mask"
        )
    return None


def choose(kernel: str, needs: Needs, device: str, keys: int) -> str:
    """The kernel that a layer takes for `keys` keys on a device type: its own, or with `auto` the fastest that can do it."""
    if kernel != "auto":
        return kernel
    if keys <= PLAIN_UP_TO.get(device, 0):
        return "plain"
    return next(name for name in BEYOND if missing(name, needs) is None)
