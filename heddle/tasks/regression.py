"""Regression: one number for each text, or for each pair of texts."""

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from heddle.config.model import ClassifierHeadConfig
from heddle.data.batch import Batch
from heddle.data.buckets import EMPTY
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype
from heddle.tasks.classification import one_label, texts_of
from heddle.tasks.labelled import LabelledTask
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.records import Lengths
from heddle.tasks.task import ExampleIndices, Target
from heddle.text.tokenizer import Tokenizer

FAR = 10.0  # a scale or a mean of labels that takes many steps to reach from 0


class SquaredError(CrossEntropy):
    """The square of score - target, for a model with one score for each text, instead of nats."""

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The moments of scores and targets, for their correlation."""
        scores, targets = self._scores(features).double(), batch.targets.double()
        sums = {"x": scores, "y": targets, "xx": scores**2, "yy": targets**2, "xy": scores * targets}
        return {name: each * batch.weights for name, each in sums.items()}

    def _scores(self, features: Tensor) -> Tensor:
        """One score for each text."""
        assert self.model.head is not None
        linear = self.model.head.scoring(self.model.embedding.weight).to(features.dtype)
        found = torch.nn.functional.linear(features, linear.table, linear.bias)[..., 0]
        return found.to(wide_dtype(found.dtype))

    def _sum(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        total = ((self._scores(features) - targets) ** 2 * weights).sum()
        return total, total.detach()


class RegressionTask(LabelledTask):
    """Texts with a number each, which the model's single score predicts as it is, in the labels' unit.

    Labels are not standardised, so that the score needs no conversion wherever the model is used.

    Raises:
        HeddleError: a record has several labels, or one that is NaN or infinite.
    """

    def targets(self, records: Records) -> Lengths:
        """Int[R], 1 for each record."""
        labels = one_label(records)
        wrong = np.flatnonzero(~np.isfinite(labels.astype(np.float64)))
        if len(wrong):
            raise HeddleError(f"the label of record {wrong[0]} is {labels[wrong[0]]}, not a finite number")
        return np.ones(len(records), dtype=np.int64)

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Float[B], the number of each record."""
        real = examples.places != EMPTY
        found = np.where(real, one_label(records)[np.maximum(examples.places, 0)], 0.0)
        return torch.from_numpy(found.astype(np.float32)), torch.from_numpy(real.astype(np.float32))

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The squared error, for a model with one score for each text."""
        head = model.config.head
        if not isinstance(head, ClassifierHeadConfig) or head.classes != 1 or head.several or head.pooling == "none":
            raise HeddleError("the task 'regression' needs a classifier with classes = 1 and a pooling as head")
        if label_smoothing or z_loss:
            raise HeddleError("label_smoothing and z_loss have no effect on the task 'regression': leave them out")
        return SquaredError(model)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """The root of the mean squared error, which is the loss, and Pearson's correlation; 0 without any variation."""
        x, y = means["x"], means["y"]
        spread = (means["xx"] - x**2) * (means["yy"] - y**2)
        correlation = (means["xy"] - x * y) / sqrt(spread) if spread > 0 else 0.0
        return {"root_mean_squared_error": sqrt(means["loss"]), "pearson": correlation}

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """The number."""
        return f"{target:.4g}"

    def remarks(self) -> list[str]:
        """Labels that are far from what a model predicts at first."""
        labels = one_label(self.spec.records(held_out=False)).astype(np.float64)
        mean, spread = float(labels.mean()), float(labels.std())
        found = super().remarks()
        if abs(mean) > FAR or spread > FAR or spread < 1 / FAR:
            found.append(
                f"labels have mean {mean:.3g} and standard deviation {spread:.3g}: if you can, rescale them to about 0 and 1, "
                "which are learned faster"
            )
        return found

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The number and the right one, then the text."""
        right = float(one_label(records)[record])
        return f"[{scores.item():.3g} / {right:.3g}] {texts_of(records, record, tokenizer, most)}"
