"""What a run learns, as data: a config class for each task.

The text under a field is its help in `heddle train --help`.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config

Share = Annotated[float, Field(ge=0, le=1)]


class TaskSettings(Config):
    """What all tasks' settings have in common.

    Attributes:
        families: the stacks that a model for this task may have; the first is what a model without a preset gets.
        fields: what it reads: a text, or the fields of a record, such as `source` and `target`.
        head: the kind of the model's head.
        special_tokens: tokens that a tokenizer trained for this task gets.
    """

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("decoder",),)
    fields: ClassVar[tuple[str, ...]] = ("text",)
    head: ClassVar[str] = "language"
    special_tokens: ClassVar[tuple[str, ...]] = ()


class NextTokenConfig(TaskSettings):
    """Predict each token from those before it (L1-24)."""

    kind: Literal["next_token"] = "next_token"
    """What to learn: next_token predicts each token from those before it; masked, hidden tokens from both sides."""


class MaskedConfig(TaskSettings):
    """Predict hidden tokens from both sides (Devlin et al. 2019, 3.1; L3-04)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",),)
    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]",)

    kind: Literal["masked"] = "masked"
    """Predict hidden tokens from those on both sides."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens to predict."""
    masked: Share = 0.8
    """Share of the tokens to predict that are replaced by the mask token."""
    random: Share = 0.1
    """Share of the tokens to predict that are replaced by random tokens; the rest are left as they are."""
    whole_words: bool = False
    """Predict all tokens of a word or none."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.masked + self.random > 1:
            raise ValueError(
                f"masked = {self.masked} and random = {self.random} add up to more than 1; lower one of them"
            )
        return self


TaskConfig = Annotated[NextTokenConfig | MaskedConfig, Field(discriminator="kind")]
