"""Evaluation labels that a model has not learned: such records are not scored, or such labels count as missed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heddle.data.record_stats import listed_names
from heddle.data.sources.examples import Example
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize

MAX_LABELS = 8  # labels in a line


@displayed()
@dataclass(frozen=True, slots=True)
class ScorableRecords:
    """Records without the labels that a model has not learned.

    Attributes:
        examples: the records that can be scored: records with an unknown label are removed; if words are labelled, or a text has
            several labels, only the unknown labels are removed.
        missed: how many labels were removed from each record.
        unseen: how often each unknown label occurs.
    """

    examples: list[Example]
    missed: list[int]
    unseen: Mapping[str, int]


def scorable_records(
    examples: Sequence[Example], classes: tuple[str, ...], model: str, several: bool
) -> ScorableRecords:
    """The records that a model with these classes can be scored on.

    Args:
        model: name of the model in messages.
        several: whether a text has several labels.

    Raises:
        HeddleError: the model has learned none of the labels, which then probably belong to another task.
    """
    unseen, first = Counter[str](), dict[str, str]()
    scorable, missed = list[Example](), list[int]()
    for example in examples:
        names = example.label if isinstance(example.label, tuple) else (example.label,)
        unknown = [str(name) for name in names if name and name not in classes]
        unseen.update(unknown)
        for name in unknown:
            first.setdefault(name, example.origin)
        if unknown and len(unknown) == len([name for name in names if name]) and not several:
            continue
        if several:
            example = replace(example, label=tuple(name for name in names if name in classes))
        elif isinstance(example.label, tuple):
            example = replace(example, label=tuple(name if name in classes else "" for name in example.label))
        scorable.append(example)
        missed.append(len(unknown))
    if unseen and not any(example.label or not count for example, count in zip(scorable, missed, strict=True)):
        all_unknown = tuple(first)
        labels = f"label{'s' if len(all_unknown) > 1 else ''} {listed_names(all_unknown)}"
        raise HeddleError(
            f"{first[all_unknown[0]]}: {model} does not know the {labels}; it has learned {listed_names(classes)}"
        )
    return ScorableRecords(scorable, missed, dict(unseen))


def describe_unseen(unseen: Mapping[str, int], several: bool, model: str) -> str:
    """Describe the unknown labels in one line: how often each occurs, and whether it counts as missed or is not scored."""
    names = ", ".join(f"{name!r} ({count:,})" for name, count in list(unseen.items())[:MAX_LABELS])
    labels = f"{pluralize(sum(unseen.values()), 'label')} that {model} has not learned: {names}"
    outcome = "counted as missed" if several else "not scored"
    return f"{outcome}: {labels}{', …' if len(unseen) > MAX_LABELS else ''}"
