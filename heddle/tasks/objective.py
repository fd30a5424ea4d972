"""From a batch to a loss: a sum over targets and their count, so that any split gives the same gradient."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.checks import between, checked
from heddle.data.batch import Batch
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.output import Routing
from heddle.tasks.loss import cross_entropy
from heddle.tasks.loss_chunk import OneChunk, of_chunk
from heddle.tasks.own_loss import OwnLoss, scalar, scored
from heddle.tasks.recurring import weighted


@displayed()
@dataclass(frozen=True)
class Loss:
    """A sum over targets and their count; the mean is `total / count`.

    Attributes:
        total: sum of nats, with label smoothing and the z-loss if any, which is minimised.
        plain: the same without these two, which is reported, so that runs can be compared whatever they minimise.
        count: sum of the target weights.
        extra: the routers' terms, which are minimised too, as a sum over tokens; 0 without routers.
        loads: per mixture of experts, how many tokens chose each expert.
    """

    total: Float[Tensor, ""]
    plain: Float[Tensor, ""]
    count: Float[Tensor, ""]
    extra: Float[Tensor, ""]
    loads: tuple[Tensor, ...] = ()


class CrossEntropy(nn.Module):
    """-log p of each target by the model's head, summed over the batch. Compilation and parallelism wrap this module.

    It serves every head that scores: targets are [B T] if it scores tokens, [B] if sequences.

    Args:
        model: the model, with a head.
        label_smoothing: see `cross_entropy`.
        z_loss: see `cross_entropy`.

    Raises:
        HeddleError: the model has no head.
    """

    @checked(label_smoothing=between(0, 1), z_loss=between(0, 1))
    def __init__(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> None:
        super().__init__()
        if model.head is None:
            raise HeddleError("this model has no head, so there is nothing to score; give it a head")
        self.model, self.terms = model, (label_smoothing, z_loss)
        self.own: OwnLoss | None = None
        self.one_chunk: OneChunk = of_chunk

    def forward(self, batch: Batch) -> Loss:
        features, routings = self._features(batch)
        if self.own is None:
            count = None if batch.counts is None else sum(batch.counts)
            total, plain = self._sum(features, batch.targets, batch.weights, count)
        else:
            total = scalar(self.own(self._outputs(features), batch), self.own)
            plain = total.detach()
        extra = sum((routing.terms for routing in routings), torch.zeros_like(total))
        return Loss(total, plain, batch.weights.sum(), extra, tuple(routing.load for routing in routings))

    def by_row(self, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """Sums per row for evaluation: `loss`, the plain weighted nats, and what a subclass counts."""
        features, _ = self._features(batch)
        rows = zip(features, batch.targets, batch.weights, batch.counts or [None] * len(features), strict=True)
        return {"loss": torch.stack([self._sum(*row)[1] for row in rows]), **self.counts(features, batch)}

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """Further sums per row, from which the task computes what it reports; none here."""
        return {}

    def _features(self, batch: Batch) -> tuple[Tensor, tuple[Routing, ...]]:
        """The features to score, [B T D] or [B D], and the routers' reports."""
        source = (batch.source, batch.source_layout, batch.types, batch.source_types)
        hidden, routings = self.model(batch.tokens, batch.layout, *source)
        assert self.model.head is not None
        return self.model.head.features(hidden, batch.layout), routings

    def _outputs(self, features: Tensor) -> Tensor:
        """What a user's own loss is given: the scores that the head makes of features, V columns."""
        return scored(self.model, features)

    def _sum(
        self, features: Tensor, targets: Tensor, weights: Tensor, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sum of weighted nats to minimise, and to report, from features [... D] and targets and weights [...], of which `count`
        are not 0; None: count them here.
        """
        assert self.model.head is not None
        # `IGNORED` has weight 0, so any id will do; its scores would be wasted, but a compiled graph needs fixed shapes.
        x, ids, factors = features.reshape(-1, features.shape[-1]), targets.flatten().clamp(min=0), weights.flatten()
        if not torch.compiler.is_compiling():
            count = int(weights.count_nonzero()) if count is None else count
            if 0 < count < len(factors):
                x, ids, factors = weighted(x, ids, factors, count)
        scores = self.model.head.scoring(self.model.embedding.weight)
        return cross_entropy(x, ids, factors, scores, None, *self.terms, self.one_chunk)
