"""Cross-entropy that also counts, in evaluation, which targets are predicted right."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.data.batch import Batch
from heddle.train.objective import CrossEntropy


class CountingCrossEntropy(CrossEntropy):
    """-log p of each target; `by_row` also counts the targets with the highest score, as `accuracy`."""

    def by_row(self, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """Sums per row: `loss`, the weighted nats, and `accuracy`, the weights of the targets with the highest score."""
        features, _ = self._features(batch)
        assert self.model.head is not None
        head = self.model.head
        scores = head.scoring(self.model.embedding.weight).to(features.dtype)
        nats, right = [], []
        # Row by row, so that the scores of the whole batch are never held.
        for row, targets, weights in zip(features, batch.targets, batch.weights, strict=True):
            best = scores.finish(head.product(row, scores.table, scores.bias)).argmax(-1)
            nats.append(self._nats(row, targets, weights))
            right.append(((best == targets) * weights).sum())
        return {"loss": torch.stack(nats), "accuracy": torch.stack(right)}
