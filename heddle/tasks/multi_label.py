"""Classification with several labels: any number of them for each text, or for each pair of texts."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config.model import ClassifierHeadConfig
from heddle.data.batch import Batch
from heddle.data.buckets import EMPTY
from heddle.data.records import MISSED, Column, Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype
from heddle.tasks.classification import texts_of
from heddle.tasks.labelled import ClassTask
from heddle.tasks.metrics import label_counts, label_metrics
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths
from heddle.tasks.task import ExampleIndices, Target
from heddle.text.tokenizer import Tokenizer


class BinaryCrossEntropy(CrossEntropy):
    """-log p of whether a text has each label, the mean over labels, with p = sigmoid(score).

    Args:
        model: a model with a score for each label of a text.
        positive_weights: Float[C], weight in training of having each label, relative to not having it.
    """

    def __init__(self, model: Transformer, positive_weights: Tensor) -> None:
        super().__init__(model)
        self.register_buffer("positive_weights", positive_weights, persistent=False)

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """For each label, how often it is correct, predicted and actual; and how often all labels are correct."""
        head = self.model.config.head
        assert isinstance(head, ClassifierHeadConfig)
        counts = label_counts(self._scores(features).sigmoid() > head.threshold, batch.targets)
        return {name: each * batch.weights for name, each in counts.items()}

    def _scores(self, features: Tensor) -> Tensor:
        """A score for each label of each text."""
        assert self.model.head is not None
        linear = self.model.head.scoring(self.model.embedding.weight).to(features.dtype)
        scores = F.linear(features, linear.table, linear.bias)
        return scores.to(wide_dtype(scores.dtype))

    def _sum(
        self, features: Tensor, targets: Tensor, weights: Tensor, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = self._scores(features)
        actual = targets[..., : scores.shape[-1]].to(scores.dtype)
        plain = F.binary_cross_entropy_with_logits(scores, actual, reduction="none")
        positive_weights: Any = self.positive_weights
        weighted = plain * torch.where(actual > 0, positive_weights.to(scores.dtype), 1.0)
        return (weighted.mean(-1) * weights).sum(), (plain.detach().mean(-1) * weights).sum()


class MultiLabelTask(ClassTask):
    """Texts with any number of labels each, which do not exclude each other.

    The loss is the mean over labels, so that runs with different numbers of labels can be compared.

    Raises:
        HeddleError: as in `ClassTask`.
    """

    weights_setting: ClassVar[str] = "label_weights"

    def targets(self, records: Records) -> Lengths:
        """Int[R], 1 for each record: records without labels are learned too."""
        return np.ones(len(records), dtype=np.int64)

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Float[B C], 1 for each label of a record, and Float[B], the weights; a further column, if any, counts labels without a
        class."""
        real, missed = examples.places != EMPTY, records.columns.get(MISSED)
        labels = np.zeros((len(examples.places), len(self.names) + (missed is not None)), dtype=np.float32)
        for row, place in enumerate(examples.places.tolist()):
            if real[row]:
                labels[row, records.columns["label"][place]] = 1.0
                if missed is not None:
                    labels[row, -1] = missed[place].sum()
        return torch.from_numpy(labels), torch.from_numpy(real.astype(np.float32))

    def balanced(self, labels: Column) -> npt.NDArray[np.float64]:
        """For each label, the number of texts without it divided by the number of texts with it."""
        counts = np.bincount(labels.values, minlength=len(self.names))
        weights: npt.NDArray[np.float64] = (len(labels) - counts).clip(1) / counts.clip(1)
        return weights

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of whether a text has each label."""
        self.check_head(model)
        if label_smoothing or z_loss:
            raise HeddleError(
                f"label_smoothing and z_loss have no effect on the task {self.config.kind!r}: leave them out"
            )
        return BinaryCrossEntropy(model, torch.tensor(self.weights, dtype=torch.float32, device=model.device))

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """F1 over all decisions and averaged over labels, and the share of texts with all labels correct."""
        return label_metrics(means, len(self.names))

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """The names of the text's labels."""
        assert isinstance(target, list)
        return self._listed(place for place, present in enumerate(target[: len(self.names)]) if present)

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The labels in brackets, then the text."""
        head = self.spec.model.head
        assert isinstance(head, ClassifierHeadConfig)
        predicted = self._listed(torch.nonzero(scores.sigmoid() > head.threshold).flatten().tolist())
        actual = self._listed(records.columns["label"][record].tolist())
        prefix = f"[{predicted}]" if predicted == actual else f"[{predicted} / {actual}]"
        return f"{prefix} {texts_of(records, record, tokenizer, most)}"

    def _listed(self, labels: Any) -> str:
        return ", ".join(self.names[label] for label in labels) or "none"
