"""A known mistake in attention, a block, a language model or its loss, as other code for some steps of the definition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from heddle.lessons.definition import AttentionSteps, BlockSteps, ModelSteps, Steps

Part = Literal["attention", "block", "model", "loss"]
Changes = Mapping[str, Any]  # by the name of a step, such as `attention.mask`
DROPPED = 0.25  # share of values that the faults of dropout drop


@dataclass(frozen=True)
class Fault:
    """A known mistake.

    Attributes:
        name: what it is, in a few words.
        part: where it is made.
        variants: the steps that differ from the definition's, once for each way to make the mistake.
        message: what is wrong, in a sentence.
        remedy: what to do.
        lesson: the number of the lesson that shows it.
        rows: rows of the lectures that it contradicts.
        is_random: whether two calls differ, so that no numbers tell it.
    """

    name: str
    part: Part
    variants: tuple[Changes, ...]
    message: str
    remedy: str
    lesson: int
    rows: tuple[str, ...] = ()
    is_random: bool = False

    def steps(self, variant: int = 0) -> Steps:
        """The definition's steps with this mistake."""
        return changed(self.variants[variant])


def changed(*changes: Changes) -> Steps:
    """The definition's steps with changes."""
    parts: dict[str, Any] = {"attention": AttentionSteps(), "block": BlockSteps(), "model": ModelSteps()}
    for each in changes:
        for place, step in each.items():
            part, name = place.split(".")
            parts[part] = replace(parts[part], **{name: step})
    return Steps(**parts)
