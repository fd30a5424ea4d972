"""Cross-entropy that also counts correct predictions in evaluation."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.data.batch import Batch
from heddle.tasks.objective import CrossEntropy


class CountingCrossEntropy(CrossEntropy):
    """-log p of each target; `by_row` also counts the targets with the highest score, as `accuracy`."""

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """`accuracy`: per row, the weights of the targets with the highest score."""
        head = self.model.language_head()
        scores, correct = head.scoring(self.model.embedding.weight).to(features.dtype), []
        # Row by row, so that the scores of the whole batch are never in memory at once.
        for row, targets, weights in zip(features, batch.targets, batch.weights, strict=True):
            best = scores.finish(head.product(row, scores.table, scores.bias)).argmax(-1)
            correct.append(((best == targets) * weights).sum())
        return {"accuracy": torch.stack(correct)}
