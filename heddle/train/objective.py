"""From a batch to a loss: a sum over target tokens and their count, so that any split gives the same gradient."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.checks import checked
from heddle.data.batch import Batch
from heddle.model.transformer import Transformer
from heddle.train.loss import Scores, cross_entropy


@dataclass(frozen=True)
class Loss:
    """A sum of weighted terms and the number of targets it runs over; the mean is `total / count`.

    Attributes:
        total: nats, summed: what is reported.
        count: sum of the target weights.
        extra: what routers add to what is minimised, a sum over tokens as well; 0 without any.
        loads: for each mixture of experts, how many tokens chose each expert.
    """

    total: Float[Tensor, ""]
    count: Float[Tensor, ""]
    extra: Float[Tensor, ""]
    loads: tuple[Tensor, ...] = ()


class NextToken(nn.Module):
    """-log p(next token), summed over the batch's targets (L1-24). The root that parallelism wraps.

    Raises:
        HeddleError: the model is no causal language model.
    """

    @checked()
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        model.check_predicts_next()
        self.model = model

    def forward(self, batch: Batch) -> Loss:
        hidden, routings = self.model(batch.tokens, batch.layout)
        total = self._nats(hidden, batch.targets, batch.weights)
        extra = torch.zeros_like(total)
        for routing in routings:
            extra = extra + routing.terms
        return Loss(total, batch.weights.sum(), extra, tuple(routing.load for routing in routings))

    def by_row(self, batch: Batch) -> Float[Tensor, " B"]:
        """The weighted nats of each row: `forward(batch).total`, apart."""
        hidden = self.model(batch.tokens, batch.layout).hidden
        return torch.stack([self._nats(*row) for row in zip(hidden, batch.targets, batch.weights, strict=True)])

    def _nats(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Of hidden vectors [... T D] with targets and weights [... T], summed."""
        head = self.model.language_head()
        return cross_entropy(
            head.features(hidden).flatten(0, -2),
            self.model.head_weight(),
            targets.flatten().clamp(min=0),  # `IGNORED` weighs nothing, so any id will do
            weights.flatten(),
            Scores(self.model.vocab_size, head.cap, ways=head.ways),
            head.bias,
        )
