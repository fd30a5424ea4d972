"""Classification of the words of a text, such as names of people and places (Devlin et al. 2019, 5.3)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.tasks.classification import ClassObjective
from heddle.tasks.labelled import ClassTask
from heddle.tasks.metrics import OUTSIDE, are_spans, class_metrics, predicted, span_f1, spans
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths, padded
from heddle.tasks.task import ExampleIndices
from heddle.text.tokenizer import Tokenizer


class TagObjective(ClassObjective):
    """Cross-entropy of the words' classes; evaluation also counts spans.

    Args:
        model: a model that scores each token.
        names: names of the classes, such as O, B-PER and I-PER.
        label_smoothing: see `heddle.tasks.cross_entropy`.
        z_loss: see `heddle.tasks.cross_entropy`.
    """

    def __init__(
        self, model: Transformer, names: tuple[str, ...], label_smoothing: float = 0.0, z_loss: float = 0.0
    ) -> None:
        super().__init__(model, label_smoothing, z_loss)
        self.names = names

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Correct, predicted and actual counts of each class; and of spans, if the classes are tags of spans."""
        counts = super().counts(features, batch)
        if not are_spans(self.names):
            return counts
        assert self.model.head is not None
        classes = predicted(features, self.model.head.scoring(self.model.embedding.weight))
        sums = []
        cut = [False] * len(classes) if batch.continued is None else batch.continued.tolist()
        for row, targets, continued in zip(classes.tolist(), batch.targets.tolist(), cut, strict=True):
            words = [place for place, target in enumerate(targets) if target != IGNORED]
            predicted_spans = spans([self.names[row[place]] for place in words])
            actual_spans = spans([self.names[targets[place]] for place in words])
            if continued:
                actual_spans = {span for span in actual_spans if span[1] < len(words)}
            sums.append([len(predicted_spans & actual_spans), len(predicted_spans), len(actual_spans)])
        span_counts = batch.weights.new_tensor(sums).T
        return {**counts, **dict(zip(("spans correct", "spans predicted", "spans actual"), span_counts, strict=True))}


class TokenClassificationTask(ClassTask):
    """Texts with a class for each word: at the first id of the word, `IGNORED` at the others.

    A word beyond the context gets no prediction, which metrics count as wrong.

    Raises:
        HeddleError: a text has more or fewer labels than ids, or as in `ClassTask`.
    """

    counts_unread: ClassVar[bool] = True

    def targets(self, records: Records) -> Lengths:
        """Int[R], number of words with a class in each record, without words that are cut off."""
        text, label = records.columns["text"], records.columns["label"]
        invalid = np.flatnonzero(text.lengths != label.lengths)
        if len(invalid):
            ids, labels = text.lengths[invalid[0]], label.lengths[invalid[0]]
            raise HeddleError(f"record {invalid[0]} has {labels} labels for {ids} ids; each id needs one, or {IGNORED}")
        fitting = np.minimum(text.lengths, self.spec.length - self.frame.marks(1))
        before = np.concatenate([[0], np.cumsum(label.values != IGNORED)])
        counts: Lengths = before[label.offsets[:-1] + fitting] - before[label.offsets[:-1]]
        return counts

    def all_targets(self, records: Records) -> Lengths:
        """Int[R], number of words with a class in each record, cut off or not."""
        label = records.columns["label"]
        before = np.concatenate([[0], np.cumsum(label.values != IGNORED)])
        counts: Lengths = before[label.offsets[1:]] - before[label.offsets[:-1]]
        return counts

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows; for evaluation, also whether the span of their last word continues beyond the context."""
        batch = super().batch(examples)
        if not examples.held_out or not are_spans(self.names):
            return batch
        continued = [_span_continues(within, beyond) for within, beyond in self._tags(examples)]
        return replace(batch, continued=torch.tensor(continued))

    def unread(self, examples: ExampleIndices) -> dict[str, Tensor]:
        """Counts of the words beyond the context, of their classes, and of spans that end there."""
        sums: dict[str, list[int]] = {"cut": []}
        sums |= {f"actual {number}": [] for number in range(len(self.names))}
        sums |= {"spans actual": []} if are_spans(self.names) else {}
        for within, beyond in self._tags(examples):
            sums["cut"].append(len(beyond))
            for number, name in enumerate(self.names):
                sums[f"actual {number}"].append(beyond.count(name))
            if are_spans(self.names):
                read = len(spans(within)) - _span_continues(within, beyond)
                sums["spans actual"].append(len(spans([*within, *beyond])) - read)
        return {name: torch.tensor(counts, dtype=torch.float64) for name, counts in sums.items()}

    def _tags(self, examples: ExampleIndices) -> list[tuple[list[str], list[str]]]:
        """The class names of each row's words, within the context and beyond it."""
        most = self.spec.length - self.frame.marks(1)
        labels = self.spec.records(examples.held_out).columns["label"]
        tags = []
        for place in examples.places.tolist():
            row = labels[place].tolist() if place != EMPTY else []
            within, beyond = (
                [self.names[each] for each in part if each != IGNORED] for part in (row[:most], row[most:])
            )
            tags.append((within, beyond))
        return tags

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Int[B T], the class at the first id of each word."""
        most = self.spec.length - self.frame.marks(1)
        labels = records.columns["label"]
        rows = [
            [] if place == EMPTY else [*[IGNORED] * self.frame.start, *labels[int(place)][:most]]
            for place in examples.places
        ]
        return self.weighted_targets(padded(rows, IGNORED, width), examples.held_out)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of the class of each word."""
        self.check_head(model)
        return TagObjective(model, self.names, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Accuracy, and F1 of spans, or F1 averaged over classes if they are not tags of spans; of all words, cut off or not."""
        records = self.spec.records(held_out=True)
        scored = self.targets(records)
        unscored = np.flatnonzero((scored == 0) & (self.all_targets(records) > 0))
        for name, counts in self.unread(ExampleIndices(unscored, held_out=True)).items():
            means = {**means, name: means.get(name, 0.0) + float(counts.sum()) / int(scored.sum())}
        means = {name: mean / (1 + means["cut"]) for name, mean in means.items()}
        metrics = class_metrics(means, len(self.names))
        if not are_spans(self.names):
            return {name: metrics[name] for name in ("accuracy", "macro_f1")}
        return {"accuracy": metrics["accuracy"], "span_f1": span_f1(means)}

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The text, with the class after each word, unless both the prediction and the label are O."""
        limit = min(most, self.spec.length - self.frame.marks(1))
        ids, labels = (records.columns[name][record][:limit].tolist() for name in ("text", "label"))
        predicted = scores.argmax(-1).tolist()[self.frame.start :]
        starts = [place for place, label in enumerate(labels) if label != IGNORED]
        words = [tokenizer.decode(ids[: starts[0]])] if starts and starts[0] else []
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            word = tokenizer.decode(ids[start:stop]).strip()
            is_plain = self.names[predicted[start]] == self.names[labels[start]] == OUTSIDE
            words.append(word if is_plain else word + self.format_label(predicted[start], labels[start]))
        return " ".join(words)


def _span_continues(within: Sequence[str], beyond: Sequence[str]) -> bool:
    """Whether the first tag beyond the context continues the last span within it."""
    return bool(within and beyond) and within[-1] != OUTSIDE and beyond[0] == f"I-{within[-1][2:]}"
