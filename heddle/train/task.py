"""What a run learns: which examples a step reads, what is a target in them, what is minimised, and what is reported.

A task is a config class with its `kind` (`heddle.config.run`), a class here below, and a row in `heddle.train.tasks`. The trainer,
`fit`, the plan and the evaluation know the interface alone.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from heddle.config.model import TransformerConfig
from heddle.data.batch import Batch
from heddle.data.store import Corpus
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.objective import CrossEntropy


@dataclass(frozen=True)
class Reading:
    """What a task reads, and how much of it at a time.

    Attributes:
        corpus: the texts.
        model: what it is read for: its ids and its context.
        rows: examples in a step.
        seed: of the order of examples.
        context: length of a window; None: the model's.
    """

    corpus: Corpus
    model: TransformerConfig
    rows: int = 1
    seed: int = 0
    context: int | None = None

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.model.context if self.context is None else self.context


@dataclass(frozen=True)
class Examples:
    """Which examples: a few numbers, from which a task reads a batch.

    Attributes:
        places: Int[B], where each is found: the token at which it begins, or its number.
        held_out: whether they are of the validation part.
        length: tokens of each, where that says how much to read.
    """

    places: npt.NDArray[np.int64]
    held_out: bool = False
    length: int = 0


@dataclass(frozen=True)
class HeldOut:
    """Held-out examples to be scored.

    Attributes:
        batches: the examples, as many at a time as were asked for.
        share: of all held-out targets, those that these hold; 1 where nothing was left out.
    """

    batches: tuple[Examples, ...]
    share: float


class Task(ABC):
    """One thing to learn. The base of every task.

    Attributes:
        stacks: which stacks a model for it has.
    """

    stacks: ClassVar[tuple[str, ...]] = ("decoder",)

    def __init__(self, config: Any, reading: Reading) -> None:
        self.config, self.reading = config, reading

    @abstractmethod
    def examples(self, step: int) -> Examples:
        """Which examples step `step` (from 0) reads: a function of (seed, step), however they are cut or shared among ranks."""

    @abstractmethod
    def batch(self, examples: Examples) -> Batch:
        """The examples, on the CPU. What is a target is decided here and only here."""

    @abstractmethod
    def held_out(self, rows: int, most: int | None = None) -> HeldOut:
        """What evaluation scores: `rows` examples at a time, the same ones every time.

        Args:
            rows: examples in a batch.
            most: targets to score; of more an even sample of about so many is taken. None: all.

        Raises:
            HeddleError: nothing is held out that has a target.
        """

    def objective(self, model: Transformer) -> CrossEntropy:
        """What is minimised.

        Raises:
            HeddleError: the model cannot do what this task asks.
        """
        return CrossEntropy(model)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """What evaluation reports beside the loss.

        Args:
            means: what the objective's `by_row` adds up, as means over targets: `loss` in nats, and what else it has.
            share: of all held-out targets, those that were scored.
        """
        return {name: mean for name, mean in means.items() if name != "loss"}

    def remarks(self) -> list[str]:
        """What a user should know of how its texts will be read, a line each."""
        return []

    def describe(self, examples: Examples) -> str:
        """Where examples are found, in words, for whoever looks for what went wrong."""
        return f"examples {listed(examples)}"

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Something that the model makes by itself, to be shown while it trains; None: nothing that one could read."""
        return None


def listed(examples: Examples, most: int = 8) -> str:
    """The places of the first few examples."""
    return ", ".join(str(place) for place in examples.places[:most]) + (", …" if len(examples.places) > most else "")
