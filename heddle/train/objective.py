"""From a batch to a loss: a sum over target tokens and their count, so that any split gives the same gradient."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from heddle.data.batch import Batch
from heddle.model.transformer import Transformer
from heddle.train.loss import cross_entropy


@dataclass(frozen=True)
class Loss:
    """A sum of weighted terms and the number of targets it runs over; the mean is `total / count`.

    Attributes:
        total: nats, summed.
        count: sum of the target weights.
    """

    total: Float[Tensor, ""]
    count: Float[Tensor, ""]


class NextToken(nn.Module):
    """-log p(next token), summed over the batch's targets (L1-24). The root that parallelism wraps."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Loss:
        hidden = self.model(batch.tokens, batch.layout)
        total = cross_entropy(
            hidden.flatten(0, 1),
            self.model.head_weight(),
            batch.targets.flatten().clamp(min=0),  # `IGNORED` weighs nothing, so any id will do
            batch.weights.flatten(),
            self.model.vocab_size,
        )
        return Loss(total, batch.weights.sum())
