"""The interface of a task: which examples a step reads, what their targets are, what is minimised, and what is reported.

A task is a config class with its `kind` (`heddle.config.tasks`), a subclass of `Task`, and a row in `heddle.tasks.table`. The
trainer, `fit`, the plan and the evaluation use only this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heddle.config.data import DataConfig, TextLayout
from heddle.config.model import TransformerConfig
from heddle.config.tasks import TaskSettings
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.data.corpus import Corpus, Part
from heddle.data.records import Records
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.tasks.extent import Extent
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.own_loss import OwnLoss, own_loss
from heddle.text.tokenizer import Tokenizer

Target = int | float | list[float]
"""An id, the number of a class, a number, or 1 or 0 for each label."""

MULTIPLE = 8  # rows of a micro-batch of records are a multiple of this, so that 2, 4 or 8 ranks divide it


@displayed()
@dataclass(frozen=True)
class DataSpec:
    """What a task reads, and how much of it at a time.

    Attributes:
        corpus: the texts.
        model: the config of the model to train, for its ids and its context.
        rows: examples per step; packed rows are as long as the context.
        batch_tokens: padded tokens per step of records, or of documents in rows of their own; if set, a step has as many as
            fit, instead of `rows`.
        multiple: with `batch_tokens`, the number of rows is a multiple of this.
        seed: seed of the order of examples.
        context: tokens per window; None: the model's context.
        tokenizer: the texts' tokenizer, if the task asks what its ids mean.
        layout: how a plain text, or records, are put into rows.
    """

    corpus: Corpus
    model: TransformerConfig
    rows: int = 1
    seed: int = 0
    context: int | None = None
    tokenizer: Tokenizer | None = None
    batch_tokens: int | None = None
    multiple: int = MULTIPLE
    layout: TextLayout = "concatenate"

    @classmethod
    def of(
        cls,
        data: DataConfig | None,
        train: TrainConfig | None,
        corpus: Corpus,
        model: TransformerConfig,
        tokenizer: Tokenizer | None,
        **sizes: Any,
    ) -> "DataSpec":
        """What a run with these settings reads; without settings, as an imported model does.

        Args:
            data: the settings of the data.
            train: the settings of the training.
            corpus: the texts.
            model: the model.
            tokenizer: the texts' tokenizer.
            sizes: `rows`, `batch_tokens`, `context`.
        """
        data, train = data or DataConfig(), train or TrainConfig()
        sizes |= {"seed": train.seed, "multiple": MULTIPLE * train.accumulate, "layout": data.layout}
        return cls(corpus, model, tokenizer=tokenizer, **sizes)

    @property
    def length(self) -> int:
        """Tokens per window; of a text to embed, at most as many as its vector is made from."""
        return self.model.longest_text() if self.context is None else self.context

    def part(self, held_out: bool) -> Part:
        """The text to score, or the one to train on.

        Raises:
            HeddleError: there is none.
        """
        part = self.corpus.validation if held_out else self.corpus.train
        if not isinstance(part, Part):
            raise HeddleError(f"this task was given no text to {'score' if held_out else 'train on'}")
        return part

    def records(self, held_out: bool) -> Records:
        """The records to score, or those to train on.

        Raises:
            HeddleError: there are none.
        """
        part = self.corpus.validation if held_out else self.corpus.train
        if not isinstance(part, Records) or not len(part):
            raise HeddleError(f"this task was given no records to {'score' if held_out else 'train on'}")
        return part


@displayed()
@dataclass(frozen=True)
class ExampleIndices:
    """Which examples to read, as a few numbers from which a task makes a batch.

    Attributes:
        places: Int[B], where each example is: its first token, or its number.
        held_out: whether they are from the validation part.
        length: tokens per example, if the task needs it to read them.
        keys: Int[B], a number for each example from which the task draws what is random in it; None: nothing is, or the places.
    """

    places: npt.NDArray[np.int64]
    held_out: bool = False
    length: int = 0
    keys: npt.NDArray[np.int64] | None = None

    def part(self, number: int, of: int) -> "ExampleIndices":
        """Part `number` of `of` equal parts: what one rank reads."""
        rows = len(self.places) // of
        return self.take(np.arange(number * rows, (number + 1) * rows))

    def take(self, rows: npt.NDArray[np.int64]) -> "ExampleIndices":
        """These of the examples, in this order."""
        return replace(self, places=self.places[rows], keys=None if self.keys is None else self.keys[rows])


@displayed()
@dataclass(frozen=True)
class EvalSet:
    """Held-out examples to score.

    Attributes:
        batches: the examples, in batches of the requested size.
        share: share of all held-out targets that these contain; 1 if none was left out.
    """

    batches: tuple[ExampleIndices, ...]
    share: float


class Task(ABC):
    """What a run learns. The base class of all tasks.

    Attributes:
        partial_targets: only some of the tokens that `places` numbers are targets: masked ones, or those after a prefix.
        counts_unread: its metrics count targets beyond the context as wrong (`unread`).

    Raises:
        HeddleError: the task cannot read rows of this layout.
    """

    partial_targets: ClassVar[bool] = False
    counts_unread: ClassVar[bool] = False

    def __init__(self, config: Any, spec: DataSpec) -> None:
        self.config, self.spec = config, spec
        if isinstance(config, TaskSettings):
            wrong = config.refuses_layout(spec.layout, tuple(spec.model.stacks()))
            if wrong is not None:
                raise HeddleError(wrong)

    @abstractmethod
    def examples(self, step: int) -> ExampleIndices:
        """Which examples step `step` (from 0) reads: a function of (seed, step), independent of micro-batches and ranks."""

    @abstractmethod
    def batch(self, examples: ExampleIndices) -> Batch:
        """Read the examples, on the CPU. Only this method decides what the targets are."""

    @abstractmethod
    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """The examples that evaluation scores, the same ones every time.

        Args:
            rows: examples per batch.
            most: targets to score; if there are more, an even sample of about this many. None: all.

        Raises:
            HeddleError: no held-out example has a target.
        """

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The module whose loss is minimised.

        Args:
            model: the model to train.
            label_smoothing: see `heddle.tasks.cross_entropy`.
            z_loss: see `heddle.tasks.cross_entropy`.

        Raises:
            HeddleError: the model does not fit this task, or one of the terms has no effect on it.
        """
        return CrossEntropy(model, label_smoothing, z_loss)

    def minimised(self, model: Transformer, train: TrainConfig, own: OwnLoss | None = None) -> CrossEntropy:
        """The module whose loss a training minimises: this task's, or one of the user's own, which settings may name.

        Raises:
            HeddleError: as in `objective`; or the function that the settings name cannot be imported.
        """
        objective = self.objective(model, train.label_smoothing, train.z_loss)
        objective.own = own_loss(train.loss) if own is None and train.loss is not None else own
        return objective

    def extent(self) -> Extent | None:
        """How much of what is held out a score is of; None: this task does not know."""
        return None

    def unread(self, examples: ExampleIndices) -> dict[str, Tensor]:
        """For held-out examples, what the objective's `by_row` cannot count since it is beyond the context: further sums for each
        row, Float[B] by name, which evaluation adds to those of that name."""
        return {}

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """What evaluation reports with the loss.

        Args:
            means: the sums of the objective's `by_row` as means over targets: `loss` in nats, and any others.
            share: share of all held-out targets that were scored.
        """
        return {name: mean for name, mean in means.items() if name != "loss"}

    def places(self, examples: ExampleIndices) -> npt.NDArray[np.int64]:
        """Where in its part each example is, Int[B], or each of its N tokens, Int[B N]: equal numbers are the same one.

        `heddle prove` counts them: an evaluation must score each once, and an epoch must read none twice. If tokens are numbered,
        all of them must be targets, unless the task sets `partial_targets`.
        """
        return examples.places

    def size(self, held_out: bool) -> int | None:
        """How many such places a part has; None: this task does not know."""
        return None

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """The examples of epoch `number` (from 0), step by step; nothing if this task has no epochs."""
        return iter(())

    def after(self, batch: Batch, targets: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
        """Which tokens come after one target of each row, so that its loss must not depend on them.

        The target's own token is the first of them. A decoder's are all tokens to the right; an encoder has none, since it
        reads both sides.
        """
        if self.spec.model.decoder is None:
            return torch.zeros(batch.tokens.shape, dtype=torch.bool)
        return torch.arange(batch.tokens.shape[1]) > targets[:, None]

    def shown(self) -> float | None:
        """The share of targets whose own id the model is meant to read at their place; None: targets are not in the input there."""
        return None

    def steps_per_epoch(self) -> float:
        """Steps that read everything there is to train on once; by default, of a text in windows of the context."""
        return len(self.spec.part(held_out=False).tokens) / (self.spec.rows * self.spec.length)

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens of a row, of the largest batches that a step reads."""
        return [(self.spec.rows, self.spec.length)]

    def epochs(self, steps: int) -> float | None:
        """How many times so many steps read everything; None: this task does not know."""
        return steps / self.steps_per_epoch()

    def remarks(self) -> list[str]:
        """What a user should know about how the texts will be read, one line each."""
        return []

    def describe(self, examples: ExampleIndices) -> str:
        """Where examples are, in words, for error messages."""
        return f"examples {listed(examples)}"

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """A target in words: the text of an id, the name of a class or of several, or a number."""
        assert not isinstance(target, list)
        return tokenizer.piece(int(target))

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Text that the model generates, to show during training; None: nothing to show."""
        return None

    def samples(self, model: Transformer, tokenizer: Tokenizer, seeds: Sequence[int], tokens: int) -> list[str]:
        """A sample for each seed, as far as there is something to show."""
        made = (self.sample(model, tokenizer, seed, tokens) for seed in seeds)
        return [sample for sample in made if sample is not None]


def tokens_read(batch: Batch) -> int:
    """Tokens that a model reads in a batch, padding included: of an encoder-decoder, those of the source too."""
    return batch.tokens.numel() + (0 if batch.source is None else batch.source.numel())


def listed(examples: ExampleIndices, most: int = 8) -> str:
    """The places of the first few examples, as text."""
    return ", ".join(str(place) for place in examples.places[:most]) + (", …" if len(examples.places) > most else "")


def window_batches(found: Sequence[tuple[int, int]], rows: int, length: int) -> tuple[ExampleIndices, ...]:
    """Held-out windows (start, end) in batches of one length each; only the last window may be shorter than `length`."""
    full = len(found) - (found[-1][1] - found[-1][0] < length)
    cuts = [found[start : min(start + rows, full)] for start in range(0, full, rows)] + [found[full:]]
    return tuple(
        ExampleIndices(np.array([start for start, _ in cut]), held_out=True, length=cut[0][1] - cut[0][0])
        for cut in cuts
        if cut
    )


def stream(task: Task, first: int, count: int, rows: int | None = None) -> Iterator[ExampleIndices]:
    """`count` examples from example `first` on, step by step, for a task that reads `rows` in each; None: as its spec says."""
    rows = task.spec.rows if rows is None else rows
    for step in range(first // rows, -(-(first + count) // rows)):
        there = np.arange(step * rows, (step + 1) * rows)
        yield task.examples(step).take(np.flatnonzero((there >= first) & (there < first + count)))


def window_places(examples: ExampleIndices) -> npt.NDArray[np.int64]:
    """Int[B N]: the tokens of each window, as their numbers in the text."""
    return examples.places[:, None] + np.arange(examples.length)
