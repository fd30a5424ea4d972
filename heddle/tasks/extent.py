"""How much of what is held out a score is of: what is cut off, left out or has no prediction, for every task and in one place."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from heddle.display import displayed
from heddle.errors import pluralize


@displayed()
@dataclass(frozen=True)
class Extent:
    """What there is to score, and what no score can be of.

    Attributes:
        targets: everything held out that the task would predict.
        cut: targets beyond the context.
        unscored: targets that have no prediction for another reason, such as answers that the tokenizer joins with their prompts.
        examples: documents or records.
        shortened: examples that are read without their ends, since they are longer than the context.
        left_out: examples of which nothing is scored.
        blank: further records, which have an empty text.
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

    def lacks(self) -> dict[str, int]:
        """The counts of what is not scored, or not read as a whole, without zeros."""
        return {name: count for name, count in asdict(self).items() if count and name not in ("targets", "examples")}

    @staticmethod
    def shown(values: Mapping[str, float]) -> str:
        """Such counts among the numbers of a report, in a few words, such as "1,741 cut, 60 shortened"; empty without any."""
        names = [each.name for each in fields(Extent) if each.name not in ("targets", "examples")]
        return ", ".join(f"{values[name]:,} {name.replace('_', ' ')}" for name in names if values.get(name))

    def describe(self, counted: str, wrong: bool = False) -> str:
        """All that is not scored or not whole, in one line; empty if there is nothing.

        Args:
            counted: what targets are called, in the plural.
            wrong: whether a target without a prediction counts as wrong.
        """
        so = ", and count as wrong" if wrong else ""
        parts = []
        if self.cut:
            parts.append(f"{self.cut:,} of {self.targets:,} {counted} are cut off by the context{so}")
        if self.unscored:
            parts.append(f"{self.unscored:,} of {self.targets:,} {counted} have no prediction{so}")
        if self.shortened:
            parts.append(
                f"{self.shortened:,} of {self.examples:,} texts are longer than the context and lose their ends"
            )
        if self.left_out:
            parts.append(f"nothing of {self.left_out:,} of {pluralize(self.examples, 'text')} is scored")
        if self.blank:
            parts.append(f"{pluralize(self.blank, 'record')} with an empty text left out")
        return "; ".join(parts)
