"""The interface of a task: the examples of a step, their targets, the loss and the metrics.

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
    """The data that a task reads, and the sizes of its batches.

    Attributes:
        corpus: the texts.
        model: the config of the model to train, for its ids and its context.
        rows: examples per step; packed rows are as long as the context.
        batch_tokens: padded tokens per step of records, or of documents in rows of their own; if set, a step has as many as
            fit, instead of `rows`.
        multiple: with `batch_tokens`, the number of rows is a multiple of this.
        seed: seed of the order of examples.
        context: tokens per window; None: the model's context.
        tokenizer: the texts' tokenizer, if the task needs the meaning of its ids.
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
        """Tokens per window; for embeddings, at most as many as the model pools."""
        return self.model.longest_text() if self.context is None else self.context

    def part(self, held_out: bool) -> Part:
        """The text to score, or the one to train on.

        Raises:
            HeddleError: there is none.
        """
        part = self.corpus.validation if held_out else self.corpus.train
        if not isinstance(part, Part):
            raise HeddleError(f"this task has no text to {'score' if held_out else 'train on'}")
        return part

    def records(self, held_out: bool) -> Records:
        """The records to score, or those to train on.

        Raises:
            HeddleError: there are none.
        """
        part = self.corpus.validation if held_out else self.corpus.train
        if not isinstance(part, Records) or not len(part):
            raise HeddleError(f"this task has no records to {'score' if held_out else 'train on'}")
        return part


@displayed()
@dataclass(frozen=True)
class ExampleIndices:
    """Which examples to read, as a few numbers from which a task makes a batch.

    Attributes:
        places: Int[B], where each example is: its first token, or its number.
        held_out: whether they are from the validation part.
        length: tokens per example, if the task needs it to read them.
        keys: Int[B], a seed for each example's randomness; None: the task is deterministic, or uses the places.
    """

    places: npt.NDArray[np.int64]
    held_out: bool = False
    length: int = 0
    keys: npt.NDArray[np.int64] | None = None

    def part(self, number: int, of: int) -> "ExampleIndices":
        """Part `number` of `of` equal parts, as for one rank."""
        rows = len(self.places) // of
        return self.take(np.arange(number * rows, (number + 1) * rows))

    def take(self, rows: npt.NDArray[np.int64]) -> "ExampleIndices":
        """A selection of the examples, in this order."""
        return replace(self, places=self.places[rows], keys=None if self.keys is None else self.keys[rows])


@displayed()
@dataclass(frozen=True)
class EvalSet:
    """Held-out examples to score.

    Attributes:
        batches: the examples, in batches of the requested size.
        share: share of all held-out targets in these batches; 1 if none was left out.
    """

    batches: tuple[ExampleIndices, ...]
    share: float


class Task(ABC):
    """The base class of all tasks.

    Attributes:
        partial_targets: whether only some of the tokens in `places` are targets: masked ones, or those after a prefix.
        counts_unread: whether its metrics count targets beyond the context as wrong (`unread`).
        repeats: whether equal examples always give equal batches, in any order of the steps and in any thread.

    Raises:
        HeddleError: the task cannot read rows of this layout.
    """

    partial_targets: ClassVar[bool] = False
    counts_unread: ClassVar[bool] = False
    repeats: ClassVar[bool] = True

    def __init__(self, config: Any, spec: DataSpec) -> None:
        self.config, self.spec = config, spec
        if isinstance(config, TaskSettings):
            message = config.refuses_layout(spec.layout, tuple(spec.model.stacks()))
            if message is not None:
                raise HeddleError(message)

    @abstractmethod
    def examples(self, step: int) -> ExampleIndices:
        """The examples of step `step` (from 0): a function of (seed, step), independent of micro-batches and ranks."""

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
            HeddleError: the model does not fit this task, or the task does not support one of the terms.
        """
        return CrossEntropy(model, label_smoothing, z_loss)

    def minimised(self, model: Transformer, train: TrainConfig, own: OwnLoss | None = None) -> CrossEntropy:
        """The module whose loss a training minimises, with the user's own loss if there is one, as an argument or in the settings.

        Raises:
            HeddleError: as in `objective`; or the configured function cannot be imported.
        """
        objective = self.objective(model, train.label_smoothing, train.z_loss)
        objective.own = own_loss(train.loss) if own is None and train.loss is not None else own
        return objective

    def extent(self) -> Extent | None:
        """How much of the held-out data a score covers; None: unknown."""
        return None

    def unread(self, examples: ExampleIndices) -> dict[str, Tensor]:
        """Counts of held-out targets beyond the context, which the objective's `by_row` cannot see: Float[B] by name, which
        evaluation adds to the sums of `by_row`."""
        return {}

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """The metrics that evaluation reports with the loss.

        Args:
            means: the sums of the objective's `by_row` as means over targets: `loss` in nats, and any others.
            share: share of all held-out targets that were scored.
        """
        return {name: mean for name, mean in means.items() if name != "loss"}

    def places(self, examples: ExampleIndices) -> npt.NDArray[np.int64]:
        """A number for each example in its part, Int[B], or for each of its N tokens, Int[B N]; the same one has the same number.

        `heddle prove` counts them: an evaluation must score each once, and an epoch must read each at most once. If tokens are
        numbered, all of them must be targets, unless the task sets `partial_targets`.
        """
        return examples.places

    def size(self, held_out: bool) -> int | None:
        """How many such places a part has; None: unknown."""
        return None

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """The examples of epoch `number` (from 0), step by step; empty if this task has no epochs."""
        return iter(())

    def after(self, batch: Batch, targets: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
        """Which tokens come after one target of each row, so that its loss must not depend on them.

        The target's own token is the first of them. A decoder's are all tokens to the right; an encoder has none, since it
        reads both sides.
        """
        if self.spec.model.decoder is None:
            return torch.zeros(batch.tokens.shape, dtype=torch.bool)
        return torch.arange(batch.tokens.shape[1]) > targets[:, None]

    def visible_share(self) -> float | None:
        """The share of targets whose own id the model reads at their place by design; None: targets are not in the input there."""
        return None

    def steps_per_epoch(self) -> float:
        """Steps that read the training part once; by default, of a text in windows of the context."""
        return len(self.spec.part(held_out=False).tokens) / (self.spec.rows * self.spec.length)

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, tokens per row) of the largest batches of a step."""
        return [(self.spec.rows, self.spec.length)]

    def epochs(self, steps: int) -> float | None:
        """How many times `steps` steps read the training part; None: unknown."""
        return steps / self.steps_per_epoch()

    def remarks(self) -> list[str]:
        """Remarks for the user on how the texts will be read, one line each."""
        return []

    def describe(self, examples: ExampleIndices) -> str:
        """Describe where examples are, for error messages."""
        return f"examples {listed(examples)}"

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """A target as text: the text of an id, the name of a class or of several, or a number."""
        assert not isinstance(target, list)
        return tokenizer.piece(int(target))

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """A sample of the model's output, to print during training; None: the task has none."""
        return None

    def samples(self, model: Transformer, tokenizer: Tokenizer, seeds: Sequence[int], tokens: int) -> list[str]:
        """A sample for each seed, without those that are None."""
        texts = (self.sample(model, tokenizer, seed, tokens) for seed in seeds)
        return [text for text in texts if text is not None]


def tokens_read(batch: Batch) -> int:
    """Tokens that a model reads in a batch, including padding and the source of an encoder-decoder."""
    return batch.tokens.numel() + (0 if batch.source is None else batch.source.numel())


def listed(examples: ExampleIndices, most: int = 8) -> str:
    """The places of the first few examples, as text."""
    return ", ".join(str(place) for place in examples.places[:most]) + (", …" if len(examples.places) > most else "")


def window_batches(windows: Sequence[tuple[int, int]], rows: int, length: int) -> tuple[ExampleIndices, ...]:
    """Batch held-out windows (start, end) of equal length; only the last window may be shorter than `length`."""
    full = len(windows) - (windows[-1][1] - windows[-1][0] < length)
    cuts = [windows[start : min(start + rows, full)] for start in range(0, full, rows)] + [windows[full:]]
    return tuple(
        ExampleIndices(np.array([start for start, _ in cut]), held_out=True, length=cut[0][1] - cut[0][0])
        for cut in cuts
        if cut
    )


def stream(task: Task, first: int, count: int, rows: int | None = None) -> Iterator[ExampleIndices]:
    """`count` examples from example `first` on, step by step, for a task with `rows` examples per step; None: `spec.rows`."""
    rows = task.spec.rows if rows is None else rows
    for step in range(first // rows, -(-(first + count) // rows)):
        numbers = np.arange(step * rows, (step + 1) * rows)
        yield task.examples(step).take(np.flatnonzero((numbers >= first) & (numbers < first + count)))


def window_places(examples: ExampleIndices) -> npt.NDArray[np.int64]:
    """Int[B N]: the positions of each window's tokens in the text."""
    return examples.places[:, None] + np.arange(examples.length)
