"""The features of each attention kernel, and the choice that `auto` makes.

Configs use the table to refuse impossible choices, stacks to choose a kernel once per pass and attention pattern, and the memory
accounts to know what to measure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

KernelName = Literal["auto", "reference", "blockwise", "plain", "sdpa", "flex"]
Drops = Literal["none", "inverted", "any"]


@dataclass(frozen=True)
class Capability:
    """The features of a kernel, in addition to masks and biases, which all kernels support.

    Attributes:
        caps: whether it can cap scores.
        drops: dropout of attention weights that it supports: `none`; `inverted`, with a mask for each element, as in torch's
            fused kernel; or `any`.
        square: whether it allocates all scores of a head at once, whatever the mask.
        custom_scores: whether a user's module may change the scores.
        sinks: whether a learned score per head may join each softmax.
    """

    caps: bool
    drops: Drops
    square: bool = False
    custom_scores: bool = False
    sinks: bool = True


CAPABILITIES: dict[str, Capability] = {
    "reference": Capability(caps=True, drops="any", square=True, custom_scores=True),
    "blockwise": Capability(caps=True, drops="none"),
    "plain": Capability(caps=True, drops="any"),
    "sdpa": Capability(caps=False, drops="inverted", sinks=False),
    "flex": Capability(caps=True, drops="none"),
}

# Device type -> longest key sequence for which `plain` was measured to be fastest. On a device without a row, `plain` is
# never chosen for its speed.
PLAIN_UP_TO = {"cpu": 768}
BEYOND = ("sdpa", "blockwise", "plain", "reference")
"""For longer sequences, `auto` takes the first of these that supports the layer."""
FEW = 16
"""Queries, such as those of a decoding step, whose scores `plain` may hold whatever the number of keys."""
OF_FEW = ("sdpa", "plain", "reference")


@dataclass(frozen=True)
class Needs:
    """The features that a layer needs from its kernel.

    Attributes:
        cap: whether its scores are capped.
        drops: the dropout of its attention weights.
        custom_scores: whether a user's module changes its scores.
        sinks: whether a learned score per head joins its softmaxes.
    """

    cap: bool = False
    drops: Drops = "none"
    custom_scores: bool = False
    sinks: bool = False


def together(needs: Iterable[Needs]) -> Needs:
    """The combined needs of several layers."""
    all_needs = list(needs)
    order: tuple[Drops, ...] = ("none", "inverted", "any")
    drops: Drops = max((need.drops for need in all_needs), key=order.index, default="none")
    cap, custom_scores, sinks = (
        any(getattr(need, name) for need in all_needs) for name in ("cap", "custom_scores", "sinks")
    )
    return Needs(cap, drops, custom_scores, sinks)


def missing(kernel: str, needs: Needs) -> str | None:
    """The first need that a kernel does not support: `custom_scores`, `sinks`, `cap` or `drops`; None if it supports all."""
    if kernel == "auto":
        return None
    capability = CAPABILITIES[kernel]
    if needs.custom_scores and not capability.custom_scores:
        return "custom_scores"
    if needs.sinks and not capability.sinks:
        return "sinks"
    if needs.cap and not capability.caps:
        return "cap"
    return None if needs.drops in ("none", capability.drops) or capability.drops == "any" else "drops"


def refusal(kernel: str, needs: Needs) -> str | None:
    """Why a layer with these needs cannot use a kernel, and what to do; None if it can."""
    lacks = missing(kernel, needs)
    if lacks == "custom_scores":
        return f"kernel = {kernel!r} does not support custom scores: set kernel = 'auto' or 'reference', or leave out scores"
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


def choose(kernel: str, needs: Needs, device: str, queries: int, keys: int, skips: bool = False) -> str:
    """The kernel for a layer: the named one, or for `auto` the fastest suitable one.

    Args:
        kernel: the name, or `auto`.
        needs: the features that the layer needs.
        device: the type of the device.
        queries: T.
        keys: S.
        skips: whether `flex` runs here, and leaves out what others compute.
    """
    if kernel != "auto":
        return kernel
    if keys <= PLAIN_UP_TO.get(device, 0) and missing("plain", needs) is None:
        return "plain"
    if skips and missing("flex", needs) is None:
        return "flex"
    return next(name for name in (OF_FEW if queries <= FEW else BEYOND) if missing(name, needs) is None)
