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
from heddle.tasks.confusion import class_metrics, predicted
from heddle.tasks.labelled import ClassTask
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths, padded
from heddle.tasks.spans import OUTSIDE, are_spans, span_f1, spans
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
        """How often each class is right, predicted and there; and how many spans are, if the classes are those of spans."""
        found = super().counts(features, batch)
        if not are_spans(self.names):
            return found
        assert self.model.head is not None
        classes = predicted(features, self.model.head.scoring(self.model.embedding.weight))
        sums = []
        cut = [False] * len(classes) if batch.continued is None else batch.continued.tolist()
        for row, targets, continued in zip(classes.tolist(), batch.targets.tolist(), cut, strict=True):
            words = [place for place, target in enumerate(targets) if target != IGNORED]
            mine = spans([self.names[row[place]] for place in words])
            right = spans([self.names[targets[place]] for place in words])
            if continued:
                right = {span for span in right if span[1] < len(words)}
            sums.append([len(mine & right), len(mine), len(right)])
        counts = batch.weights.new_tensor(sums).T
        return {**found, **dict(zip(("spans right", "spans found", "spans there"), counts, strict=True))}


class TokenClassificationTask(ClassTask):
    """Texts with a class for each word: at the first id of the word, `IGNORED` at the others.

    A word beyond the context gets no class, which metrics count as wrong.

    Raises:
        HeddleError: a text has more or fewer labels than ids, or what `ClassTask` refuses.
    """

    counts_unread: ClassVar[bool] = True

    def targets(self, records: Records) -> Lengths:
        """Int[R], how many words of each record have a class; words that are cut off do not count."""
        text, label = records.columns["text"], records.columns["label"]
        wrong = np.flatnonzero(text.lengths != label.lengths)
        if len(wrong):
            ids, labels = text.lengths[wrong[0]], label.lengths[wrong[0]]
            raise HeddleError(f"record {wrong[0]} has {labels} labels for {ids} ids; each id needs one, or {IGNORED}")
        kept = np.minimum(text.lengths, self.spec.length - self.frame.marks(1))
        before = np.concatenate([[0], np.cumsum(label.values != IGNORED)])
        found: Lengths = before[label.offsets[:-1] + kept] - before[label.offsets[:-1]]
        return found

    def asked(self, records: Records) -> Lengths:
        """Int[R], how many words of each record have a class, cut off or not."""
        label = records.columns["label"]
        before = np.concatenate([[0], np.cumsum(label.values != IGNORED)])
        found: Lengths = before[label.offsets[1:]] - before[label.offsets[:-1]]
        return found

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows; of those to score, whether the span of their last word goes on beyond the context."""
        batch = super().batch(examples)
        if not examples.held_out or not are_spans(self.names):
            return batch
        continued = [_goes_on(within, beyond) for within, beyond in self._tags(examples)]
        return replace(batch, continued=torch.tensor(continued))

    def unread(self, examples: ExampleIndices) -> dict[str, Tensor]:
        """The words beyond the context: how many, of which classes, and the spans that end there."""
        found: dict[str, list[int]] = {"cut": []}
        found |= {f"there {number}": [] for number in range(len(self.names))}
        found |= {"spans there": []} if are_spans(self.names) else {}
        for within, beyond in self._tags(examples):
            found["cut"].append(len(beyond))
            for number, name in enumerate(self.names):
                found[f"there {number}"].append(beyond.count(name))
            if are_spans(self.names):
                read = len(spans(within)) - _goes_on(within, beyond)
                found["spans there"].append(len(spans([*within, *beyond])) - read)
        return {name: torch.tensor(counts, dtype=torch.float64) for name, counts in found.items()}

    def _tags(self, examples: ExampleIndices) -> list[tuple[list[str], list[str]]]:
        """The names of the classes of each row's words, within the context and beyond it."""
        most = self.spec.length - self.frame.marks(1)
        labels = self.spec.records(examples.held_out).columns["label"]
        found = []
        for place in examples.places.tolist():
            row = labels[place].tolist() if place != EMPTY else []
            within, beyond = (
                [self.names[each] for each in part if each != IGNORED] for part in (row[:most], row[most:])
            )
            found.append((within, beyond))
        return found

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Int[B T], the class at the first id of each word."""
        most = self.spec.length - self.frame.marks(1)
        labels = records.columns["label"]
        rows = [
            [] if place == EMPTY else [*[IGNORED] * self.frame.start, *labels[int(place)][:most]]
            for place in examples.places
        ]
        return self.counted(padded(rows, IGNORED, width), examples.held_out)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of the class of each word."""
        self.check_head(model)
        return TagObjective(model, self.names, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Accuracy, and F1 of spans if the classes are those of spans, or else averaged over classes, of all words, read or not."""
        records = self.spec.records(held_out=True)
        scored = self.targets(records)
        nothing = np.flatnonzero((scored == 0) & (self.asked(records) > 0))
        for name, counts in self.unread(ExampleIndices(nothing, held_out=True)).items():
            means = {**means, name: means.get(name, 0.0) + float(counts.sum()) / int(scored.sum())}
        means = {name: mean / (1 + means["cut"]) for name, mean in means.items()}
        found = class_metrics(means, len(self.names))
        if not are_spans(self.names):
            return {name: found[name] for name in ("accuracy", "macro_f1")}
        return {"accuracy": found["accuracy"], "span_f1": span_f1(means)}

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The text, with the class behind each word, except where it is O and rightly so."""
        kept = min(most, self.spec.length - self.frame.marks(1))
        ids, labels = (records.columns[name][record][:kept].tolist() for name in ("text", "label"))
        found = scores.argmax(-1).tolist()[self.frame.start :]
        starts = [place for place, label in enumerate(labels) if label != IGNORED]
        words = [tokenizer.decode(ids[: starts[0]])] if starts and starts[0] else []
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            word = tokenizer.decode(ids[start:stop]).strip()
            plain = self.names[found[start]] == self.names[labels[start]] == OUTSIDE
            words.append(word if plain else word + self.says(found[start], labels[start]))
        return " ".join(words)


def _goes_on(within: Sequence[str], beyond: Sequence[str]) -> bool:
    """Whether the last span of the tags within the context is one with the first tag beyond it."""
    return bool(within and beyond) and within[-1] != OUTSIDE and beyond[0] == f"I-{within[-1][2:]}"
