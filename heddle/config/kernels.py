"""One table of what each attention kernel supports, and the choice that `auto` makes.

Configs refuse impossible choices by it, stacks choose a kernel once per pass and attention pattern, and the memory accounts
read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KernelName = Literal["auto", "reference", "blockwise", "plain", "sdpa", "flex"]
Drops = Literal["none", "inverted", "any"]


@dataclass(frozen=True)
class Capability:
    """What a kernel supports besides masks and biases, which all kernels take.

    Attributes:
        caps: whether it can cap scores.
        drops: dropout of attention weights that it supports: `none`; `inverted`, with a mask for each element, as in torch's
            fused kernel; or `any`.
        square: whether it holds all scores of a head at once, whatever the mask.
        own: whether a user's own module may change the scores.
        sinks: whether a learned score per head may join each softmax.
    """

    caps: bool
    drops: Drops
    square: bool = False
    own: bool = False
    sinks: bool = True


CAPABILITIES: dict[str, Capability] = {
    "reference": Capability(caps=True, drops="any", square=True, own=True),
    "blockwise": Capability(caps=True, drops="none"),
    "plain": Capability(caps=True, drops="any"),
    "sdpa": Capability(caps=False, drops="inverted", sinks=False),
    "flex": Capability(caps=True, drops="none"),
}

# Device type -> longest key sequence for which `plain` was measured to be fastest. On a device without a row, `plain` is
# never chosen for its speed.
PLAIN_UP_TO = {"cpu": 768}
BEYOND = ("sdpa", "blockwise", "plain", "reference")
"""For longer sequences, `auto` takes the first of these that supports what the layer needs."""


@dataclass(frozen=True)
class Needs:
    """What a layer needs from its kernel.

    Attributes:
        cap: whether its scores are capped.
        drops: the dropout of its attention weights.
        own: whether a user's own module changes its scores.
        sinks: whether a learned score per head joins its softmaxes.
    """

    cap: bool = False
    drops: Drops = "none"
    own: bool = False
    sinks: bool = False


def together(needs: Iterable[Needs]) -> Needs:
    """The needs of all of these layers combined."""
    every = list(needs)
    order: tuple[Drops, ...] = ("none", "inverted", "any")
    drops: Drops = max((each.drops for each in every), key=order.index, default="none")
    cap, own, sinks = (any(getattr(each, name) for each in every) for name in ("cap", "own", "sinks"))
    return Needs(cap, drops, own, sinks)


def missing(kernel: str, needs: Needs) -> str | None:
    """Which of a layer's needs a kernel lacks, `own`, `sinks`, `cap` or `drops`; None: none."""
    if kernel == "auto":
        return None
    can = CAPABILITIES[kernel]
    if needs.own and not can.own:
        return "own"
    if needs.sinks and not can.sinks:
        return "sinks"
    if needs.cap and not can.caps:
        return "cap"
    return None if needs.drops in ("none", can.drops) or can.drops == "any" else "drops"


def refusal(kernel: str, needs: Needs) -> str | None:
    """Why a layer with these needs cannot use a kernel, and what to do; None: it can."""
    lacks = missing(kernel, needs)
    if lacks == "own":
        return f"kernel = {kernel!r} has no place for scores of your own: set kernel = 'auto' or 'reference', or leave out scores"
    if lacks == "sinks":
        return f"kernel = {kernel!r} has no attention sinks: set kernel = 'auto', or leave out sinks"
    if lacks == "cap":
        return f"kernel = {kernel!r} cannot cap scores: set kernel = 'auto', or leave out cap"
    if lacks == "drops" and CAPABILITIES[kernel].drops == "none":
        return f"kernel = {kernel!r} cannot drop attention weights: set kernel = 'auto', or dropout = 0"
    if lacks == "drops":
        return (
            f"kernel = {kernel!r} supports only inverted dropout with a mask for each element: set kernel = 'auto', or "
            "leave out dropout.style and dropout.mask"
        )
    return None


def choose(kernel: str, needs: Needs, device: str, keys: int) -> str:
    """The kernel for a layer with `keys` keys on a device type: the named one, or for `auto` the fastest suitable one."""
    if kernel != "auto":
        return kernel
    if keys <= PLAIN_UP_TO.get(device, 0) and missing("plain", needs) is None:
        return "plain"
    return next(name for name in BEYOND if missing(name, needs) is None)
