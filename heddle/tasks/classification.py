"""Classification of texts, or of pairs of texts: one class for each record (Devlin et al. 2019, 4.1; L1-93)."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.tasks.labelled import ClassTask
from heddle.tasks.metrics import class_counts, class_metrics, predicted
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths
from heddle.tasks.task import ExampleIndices
from heddle.text.tokenizer import Tokenizer


class ClassObjective(CrossEntropy):
    """Cross-entropy of classes; evaluation also counts which classes are predicted."""

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """For each class, the weights of correct, predicted and actual targets."""
        assert self.model.head is not None
        scores = self.model.head.scoring(self.model.embedding.weight)
        return class_counts(predicted(features, scores), batch.targets, batch.weights, scores.vocab_size)


class ClassificationTask(ClassTask):
    """Texts with one class each.

    Raises:
        HeddleError: a record has several labels, or as in `ClassTask`.
    """

    def targets(self, records: Records) -> Lengths:
        """Int[R], 1 for each record with a class."""
        has_class: Lengths = (one_label(records) != IGNORED).astype(np.int64)
        return has_class

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Int[B], the class of each record."""
        labels = one_label(records)
        classes = np.where(examples.places == EMPTY, IGNORED, labels[np.maximum(examples.places, 0)])
        return self.weighted_targets(classes.astype(np.int64), examples.held_out)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of the class."""
        self.check_head(model)
        return ClassObjective(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Accuracy, F1 averaged over classes, and Matthews' correlation."""
        return class_metrics(means, len(self.names))

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The class in brackets, then the text."""
        target = int(one_label(records)[record])
        return f"{self.format_label(int(scores.argmax()), target)} {texts_of(records, record, tokenizer, most)}"


def one_label(records: Records) -> npt.NDArray[Any]:
    """The labels' values, one for each record.

    Raises:
        HeddleError: a record does not have exactly one label.
    """
    column = records.columns["label"]
    invalid = np.flatnonzero(column.lengths != 1)
    if len(invalid):
        raise HeddleError(f"record {invalid[0]} has {column.lengths[invalid[0]]} labels, but a text needs exactly one")
    values: npt.NDArray[Any] = column.values
    return values


def texts_of(records: Records, record: int, tokenizer: Tokenizer, most: int) -> str:
    """The text of a record, or its two texts, cut to about `most` ids, in one line."""
    names = [name for name in ("text", "pair") if name in records.columns]
    parts = []
    for name in names:
        ids = records.columns[name][record].tolist()
        limit = max(1, most // len(names))
        parts.append(" ".join(tokenizer.decode(ids[:limit]).split()) + (" …" if len(ids) > limit else ""))
    return " | ".join(parts)
