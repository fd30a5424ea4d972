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
        """The moments of scores and targets, to compute their correlation, in fp64 on the host: a Mac's device has none."""
        scores, targets, weights = (
            each.cpu().double() for each in (self._scores(features), batch.targets, batch.weights)
        )
        sums = {"x": scores, "y": targets, "xx": scores**2, "yy": targets**2, "xy": scores * targets}
        return {name: each * weights for name, each in sums.items()}

    def _scores(self, features: Tensor) -> Tensor:
        """One score for each text."""
        assert self.model.head is not None
        linear = self.model.head.scoring(self.model.embedding.weight).to(features.dtype)
        scores = torch.nn.functional.linear(features, linear.table, linear.bias)[..., 0]
        return scores.to(wide_dtype(scores.dtype))

    def _sum(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        total = ((self._scores(features) - targets) ** 2 * weights).sum()
        return total, total.detach()


class RegressionTask(LabelledTask):
    """Texts with a number each, which the model's single score predicts directly, in the labels' unit.

    Labels are not standardised, so that scores need no conversion where the model is used.

    Raises:
        HeddleError: a record has several labels, or one that is NaN or infinite.
    """

    def targets(self, records: Records) -> Lengths:
        """Int[R], 1 for each record."""
        labels = one_label(records)
        invalid = np.flatnonzero(~np.isfinite(labels.astype(np.float64)))
        if len(invalid):
            raise HeddleError(f"the label of record {invalid[0]} is {labels[invalid[0]]}, not a finite number")
        return np.ones(len(records), dtype=np.int64)

    def labels(self, records: Records, examples: ExampleIndices, width: int) -> tuple[Tensor, Tensor]:
        """Float[B], the number of each record."""
        real = examples.places != EMPTY
        numbers = np.where(real, one_label(records)[np.maximum(examples.places, 0)], 0.0)
        return torch.from_numpy(numbers.astype(np.float32)), torch.from_numpy(real.astype(np.float32))

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
        """A remark on labels whose scale is far from a new model's predictions."""
        labels = one_label(self.spec.records(held_out=False)).astype(np.float64)
        mean, spread = float(labels.mean()), float(labels.std())
        lines = super().remarks()
        if abs(mean) > FAR or spread > FAR or spread < 1 / FAR:
            lines.append(
                f"labels have mean {mean:.3g} and standard deviation {spread:.3g}: if you can, rescale them to about 0 and 1, "
                "which are learned faster"
            )
        return lines

    def format_prediction(self, records: Records, record: int, scores: Tensor, tokenizer: Tokenizer, most: int) -> str:
        """The predicted and the actual number, then the text."""
        actual = float(one_label(records)[record])
        return f"[{scores.item():.3g} / {actual:.3g}] {texts_of(records, record, tokenizer, most)}"
