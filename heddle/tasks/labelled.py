"""The base classes of tasks that learn labels: rows of ids, class weights and printed samples."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.config.model import ClassifierHeadConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.record_stats import listed_names
from heddle.data.records import Column, Records
from heddle.errors import HeddleError, did_you_mean
from heddle.model.transformer import Transformer
from heddle.tasks.records import Chosen, Lengths, RecordTask, padded, padded_layout
from heddle.tasks.rows.framing import frame_of
from heddle.tasks.task import DataSpec, ExampleIndices, Target
from heddle.text.tokenizer import Tokenizer

SAMPLE_SIZE = 3  # texts in a sample
REPORTED_SHARE = 0.005  # share of cropped texts from which on there is a remark


class LabelledTask(RecordTask):
    """Records of a `text`, an optional `pair`, and a `label`, in the rows of a `Frame`.

    Raises:
        HeddleError: the context has no room for a text, or nothing can separate two texts.
    """

    def __init__(self, config: Any, spec: DataSpec) -> None:
        corpus = spec.corpus
        parts = [part for part in (corpus.train, corpus.validation) if isinstance(part, Records)]
        pairs = any("pair" in part.columns for part in parts)
        self.frame = frame_of(spec, 2 if pairs else 1)
        self.has_types = pairs and spec.model.last()[1].entry.types > 1
        super().__init__(config, spec)

    @abstractmethod
    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """The targets of a batch and their weights, [B] or [B T]; `EMPTY` rows have no target."""

    @abstractmethod
    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """A record in one line, up to `most` of its ids: the model's prediction, and the label if it differs."""

    def lengths(self, records: Records) -> Lengths:
        """Int[R], ids in the row of each record."""
        return np.minimum(self.frame.full_lengths(records), self.spec.length)

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], whether each record is longer than the context."""
        is_shortened: Chosen = self.frame.full_lengths(records) > self.spec.length
        return is_shortened

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows, with types 0 and 1 for the texts of a pair if the model has types."""
        records = self.spec.records(examples.held_out)
        rows = [([], 0) if place == EMPTY else self.frame.row(records, int(place)) for place in examples.places]
        ids = [row for row, _ in rows]
        tokens = padded(ids, 0)
        types = padded([[int(place >= first) for place in range(len(row))] for row, first in rows], 0)
        targets, weights = self.labels(records, examples, tokens.shape[1])
        layout = padded_layout([len(row) for row in ids], tokens.shape[1])
        types_tensor = torch.from_numpy(types) if self.has_types else None
        return Batch(torch.from_numpy(tokens), layout, targets, weights, types=types_tensor)

    def remarks(self) -> list[str]:
        """How many texts are longer than the context."""
        records = self.spec.records(held_out=False)
        share = float((self.frame.full_lengths(records) > self.spec.length).mean())
        if share < REPORTED_SHARE:
            return []
        consequence = "the longer text of a pair loses its end" if "pair" in records.columns else "they lose their ends"
        return [f"{share:.1%} of the training texts are longer than context = {self.spec.length}: {consequence}"]

    @torch.no_grad()
    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """A few held-out texts, each after [the model's label], or [the model's label / the correct one] if they differ."""
        records = self.spec.records(held_out=True)
        scorable = np.flatnonzero(self.targets(records))
        places = np.random.default_rng(seed).choice(scorable, min(SAMPLE_SIZE, len(scorable)), replace=False)
        batch = self.batch(ExampleIndices(places, held_out=True)).to(model.device)
        training = model.training
        model.eval()
        hidden = model(batch.tokens, batch.layout, types=batch.types).hidden
        scores = model.scores(hidden, batch.layout).float().cpu()
        model.train(training)
        most = max(1, tokens // len(places))
        rows = zip(places.tolist(), scores, strict=True)
        return "\n".join(self.format_prediction(records, place, row, tokenizer, most) for place, row in rows)


class ClassTask(LabelledTask):
    """A task whose labels are classes.

    Attributes:
        weights_setting: name of the setting with the weights of the classes.

    Raises:
        HeddleError: a label is not the number of a class, the records have other classes than the model, or the class weights do
            not match the classes.
    """

    weights_setting: ClassVar[str] = "class_weights"

    def __init__(self, config: Any, spec: DataSpec) -> None:
        head = spec.model.head
        count = head.classes if isinstance(head, ClassifierHeadConfig) else 0
        head_names = head.names if isinstance(head, ClassifierHeadConfig) else ()
        classes = spec.corpus.classes
        if classes and (len(classes) != count or head_names not in ((), classes)):
            expected = listed_names(head_names) if head_names else f"{count} of them"
            raise HeddleError(f"the records have the classes {listed_names(classes)}, but the model has {expected}")
        self.names = classes or head_names or tuple(str(number) for number in range(count))
        for part in (spec.corpus.train, spec.corpus.validation):
            if isinstance(part, Records) and "label" in part.columns:
                check_classes(part.columns["label"].values, self.names)
        super().__init__(config, spec)
        self.weights = self._weights()

    def check_head(self, model: Transformer) -> None:
        """Refuse a model whose head does not score this task's classes, for each text or for each token.

        Raises:
            HeddleError: it has another head.
        """
        head = model.config.head
        by_token = self.config.pooling[next(reversed(model.config.stacks()))] == "none"
        if not isinstance(head, ClassifierHeadConfig) or head.classes != len(self.names):
            raise HeddleError(
                f"the task {self.config.kind!r} needs a classifier with {len(self.names)} classes as head"
            )
        if head.several != (self.config.labels == "several"):
            needed = "several = true" if not head.several else "several = false"
            raise HeddleError(f"the task {self.config.kind!r} needs a classifier with {needed} as head")
        if (head.pooling == "none") != by_token:
            needed = "head.pooling = 'none'" if by_token else "a pooling other than 'none'"
            raise HeddleError(f"the task {self.config.kind!r} needs {needed}, not head.pooling = {head.pooling!r}")

    def weighted_targets(self, targets: npt.NDArray[np.int64], held_out: bool) -> tuple[Tensor, Tensor]:
        """Targets with their weights: those of their classes in training, 1 in evaluation."""
        weights = np.ones(len(self.names)) if held_out else self.weights
        target_weights = np.where(targets == IGNORED, 0.0, weights[np.maximum(targets, 0)])
        return torch.from_numpy(targets), torch.from_numpy(target_weights.astype(np.float32))

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """The name of a class."""
        assert not isinstance(target, list)
        return self.names[int(target)]

    def format_label(self, predicted: int, target: int) -> str:
        """The name of the predicted class in brackets, with the correct one if it differs."""
        correction = "" if target in (predicted, IGNORED) else f" / {self.names[target]}"
        return f"[{self.names[predicted]}{correction}]"

    def balanced(self, labels: Column) -> npt.NDArray[np.float64]:
        """Balanced weights of the classes, from the training part's labels."""
        counts = np.bincount(labels.values[labels.values != IGNORED], minlength=len(self.names))
        weights: npt.NDArray[np.float64] = counts.sum() / (len(self.names) * np.maximum(counts, 1))
        return weights

    def _weights(self) -> npt.NDArray[np.float64]:
        """The configured weight of each class."""
        name, setting, count = self.weights_setting, getattr(self.config, self.weights_setting), len(self.names)
        if setting == "balanced":
            train = self.spec.corpus.train
            return self.balanced(train.columns["label"]) if isinstance(train, Records) else np.ones(count)
        if isinstance(setting, Mapping):
            unknown = next((name for name in setting if name not in self.names), None)
            if unknown is not None:
                raise HeddleError(
                    f"{name}: {unknown!r} is not one of the classes {listed_names(self.names)}."
                    f"{did_you_mean(unknown, self.names)}"
                )
            return np.array([setting.get(name, 1.0) for name in self.names])
        if setting is not None and len(setting) != count:
            raise HeddleError(f"{name} has {len(setting)} numbers, but there are {count} classes")
        return np.ones(count) if setting is None else np.array(setting)


def check_classes(labels: npt.NDArray[Any], names: tuple[str, ...]) -> None:
    """Refuse labels that are neither the number of a class nor `IGNORED`."""
    invalid = np.flatnonzero((labels != IGNORED) & ((labels < 0) | (labels >= len(names))))
    if len(invalid):
        raise HeddleError(f"a label is {labels[invalid[0]]}, but the classes are 0 to {len(names) - 1}")
