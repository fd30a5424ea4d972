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
from heddle.tasks.confusion import class_counts, class_metrics, predicted
from heddle.tasks.labelled import ClassTask
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths
from heddle.tasks.task import ExampleIndices
from heddle.text.tokenizer import Tokenizer


class ClassObjective(CrossEntropy):
    """Cross-entropy of classes; evaluation also counts which classes are predicted."""

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """For each class, how often it is right, predicted and there."""
        assert self.model.head is not None
        scores = self.model.head.scoring(self.model.embedding.weight)
        return class_counts(predicted(features, scores), batch.targets, batch.weights, scores.vocab_size)


class ClassificationTask(ClassTask):
    """Texts with one class each.

    Raises:
        HeddleError: a record has several labels, or what `ClassTask` refuses.
    """

    def targets(self, records: Records) -> Lengths:
        """Int[R], 1 for each record with a class."""
        found: Lengths = (one_label(records) != IGNORED).astype(np.int64)
        return found

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Int[B], the class of each record."""
        labels = one_label(records)
        found = np.where(examples.places == EMPTY, IGNORED, labels[np.maximum(examples.places, 0)])
        return self.counted(found.astype(np.int64), examples.held_out)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of the class."""
        self.check_head(model)
        return ClassObjective(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Accuracy, F1 averaged over classes, and Matthews' correlation."""
        return class_metrics(means, len(self.names))

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The class, then the text."""
        target = int(one_label(records)[record])
        return f"{self.says(int(scores.argmax()), target)} {texts_of(records, record, tokenizer, most)}"


def one_label(records: Records) -> npt.NDArray[Any]:
    """The values of labels, one for each record.

    Raises:
        HeddleError: a record has several, or none.
    """
    column = records.columns["label"]
    wrong = np.flatnonzero(column.lengths != 1)
    if len(wrong):
        raise HeddleError(f"record {wrong[0]} has {column.lengths[wrong[0]]} labels, but a text needs exactly one")
    values: npt.NDArray[Any] = column.values
    return values


def texts_of(records: Records, record: int, tokenizer: Tokenizer, most: int) -> str:
    """The text of a record, or its two texts, cut to about `most` ids, in one line."""
    names = [name for name in ("text", "pair") if name in records.columns]
    found = []
    for name in names:
        ids = records.columns[name][record].tolist()
        kept = max(1, most // len(names))
        found.append(" ".join(tokenizer.decode(ids[:kept]).split()) + (" …" if len(ids) > kept else ""))
    return " | ".join(found)
