"""Labels that a model has not learned, in records to evaluate on: what has one is not scored, or counts as missed, and is named."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heddle.data.record_stats import listed_names
from heddle.data.sources.examples import Example
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize

SHOWN = 8  # labels in a line


@displayed()
@dataclass(frozen=True, slots=True)
class Known:
    """Records without the labels that a model has not learned.

    Attributes:
        examples: the records that can be scored: without those whose label is unknown, and without such labels of words and
            among several.
        missed: how many labels each is without.
        unseen: how often each unknown label is there.
    """

    examples: list[Example]
    missed: list[int]
    unseen: Mapping[str, int]


def known_labels(examples: Sequence[Example], classes: tuple[str, ...], whose: str, several: bool) -> Known:
    """The records that a model with these classes can be scored on.

    Args:
        whose: what to call the model.
        several: whether a text has several labels.

    Raises:
        HeddleError: it knows none of the labels, as if they were those of another task.
    """
    unseen, first = Counter[str](), dict[str, str]()
    known, missed = list[Example](), list[int]()
    for example in examples:
        names = example.label if isinstance(example.label, tuple) else (example.label,)
        strange = [str(name) for name in names if name and name not in classes]
        unseen.update(strange)
        for name in strange:
            first.setdefault(name, example.origin)
        if strange and len(strange) == len([name for name in names if name]) and not several:
            continue
        if several:
            example = replace(example, label=tuple(name for name in names if name in classes))
        elif isinstance(example.label, tuple):
            example = replace(example, label=tuple(name if name in classes else "" for name in example.label))
        known.append(example)
        missed.append(len(strange))
    if unseen and not any(example.label or not count for example, count in zip(known, missed, strict=True)):
        unknown = tuple(first)
        raise HeddleError(
            f"{first[unknown[0]]}: {whose} does not know the label{'s' if len(unknown) > 1 else ''} {listed_names(unknown)}; "
            f"it has learned {listed_names(classes)}"
        )
    return Known(known, missed, dict(unseen))


def describe_unseen(unseen: Mapping[str, int], several: bool, whose: str) -> str:
    """The unknown labels, in one line; how often each is there, and what becomes of them."""
    names = ", ".join(f"{name!r} ({count:,})" for name, count in list(unseen.items())[:SHOWN])
    labels = f"{pluralize(sum(unseen.values()), 'label')} that {whose} has not learned: {names}"
    how = "counted as missed" if several else "not scored"
    return f"{how}: {labels}{', …' if len(unseen) > SHOWN else ''}"
