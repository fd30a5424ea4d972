"""How much of the held-out data a score covers: what is cut off, left out or has no prediction."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from heddle.display import displayed
from heddle.errors import pluralize


@displayed()
@dataclass(frozen=True)
class Extent:
    """Counts of the held-out data, and of the parts that no score covers.

    Attributes:
        targets: all held-out targets.
        cut: targets beyond the context.
        unscored: targets without a prediction for another reason, such as answers that the tokenizer joins with their prompts.
        examples: documents or records.
        shortened: examples that are longer than the context and lose their ends.
        left_out: examples without any scored target.
        blank: further records, left out because a text is empty.
    """

    targets: int
    cut: int = 0
    unscored: int = 0
    examples: int = 0
    shortened: int = 0
    left_out: int = 0
    blank: int = 0

    @property
    def share(self) -> float:
        """The share of the targets that have a prediction."""
        return 1.0 if not self.targets else 1 - (self.cut + self.unscored) / self.targets

    def to_dict(self) -> dict[str, int]:
        """All counts."""
        return asdict(self)

    def unscored_counts(self) -> dict[str, int]:
        """The non-zero counts of what is not scored or not read completely."""
        return {name: count for name, count in asdict(self).items() if count and name not in ("targets", "examples")}

    @staticmethod
    def summarise_counts(values: Mapping[str, float]) -> str:
        """Format the `unscored_counts` among the numbers of a report, such as "1,741 cut, 60 shortened"; empty without any."""
        names = [each.name for each in fields(Extent) if each.name not in ("targets", "examples")]
        return ", ".join(f"{values[name]:,} {name.replace('_', ' ')}" for name in names if values.get(name))

    def describe(self, noun: str, wrong: bool = False) -> str:
        """Describe what is not scored or not read completely, in one line; empty if there is nothing.

        Args:
            noun: name of the targets, in the plural.
            wrong: whether a target without a prediction counts as wrong.
        """
        consequence = ", and count as wrong" if wrong else ""
        parts = []
        if self.cut:
            parts.append(f"{self.cut:,} of {self.targets:,} {noun} are cut off by the context{consequence}")
        if self.unscored:
            parts.append(f"{self.unscored:,} of {self.targets:,} {noun} have no prediction{consequence}")
        if self.shortened:
            parts.append(
                f"{self.shortened:,} of {self.examples:,} texts are longer than the context and lose their ends"
            )
        if self.left_out:
            parts.append(f"nothing of {self.left_out:,} of {pluralize(self.examples, 'text')} is scored")
        if self.blank:
            parts.append(f"{pluralize(self.blank, 'record')} with an empty text left out")
        return "; ".join(parts)
