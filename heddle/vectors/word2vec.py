"""word2vec with negative sampling: skip-gram and CBOW as products of small matrices (L3-08).

Mikolov et al. 2013a (1301.3781) and 2013b (1310.4546). The words of a block share their noise words, each weighted so that every
prediction has the configured number of them: the expected loss is the same, and nearly all work becomes matrix products (Ji et al.
2016, 1604.04661). In shapes, R blocks have C centers, S words around them, F features that predict, M noise words and width D.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, logsigmoid

from heddle.config.vectors import VectorsConfig
from heddle.errors import HeddleError
from heddle.progress import Pace
from heddle.vectors.corpus import WordCorpus
from heddle.vectors.divergence import finite
from heddle.vectors.windows import Blocks, blocks_of, keep_probability

CENTERS = 32  # maximum words in a block
NOISE = 64  # noise words that a block shares
NOISE_POWER = 0.75  # of the counts (Mikolov et al. 2013b, 2.2)
MOST = 4  # average occurrences of the most frequent word in a step; its gradients are summed, so more would overshoot
LOSS_INTERVAL = 32  # steps between two that compute the loss
LAST_RATE = 1e-4  # the final learning rate, as a share of the initial one


class Targets(NamedTuple):
    """The predictions of features, for R blocks.

    Attributes:
        positives: Float[R, C, F], 1 where a feature predicts a center.
        negatives: Float[R, F, M], the weight of each noise word for each feature.
    """

    positives: Tensor
    negatives: Tensor


class Gradients(NamedTuple):
    """Gradients of the loss, in the shapes of features, centers and noise."""

    features: Tensor
    centers: Tensor
    noise: Tensor


def targets_of(positives: Tensor, centers: Tensor, noise: Tensor, negatives: int) -> Targets:
    """The targets of features; a noise word that equals the center is left out of that prediction.

    Args:
        positives: Float[R, C, F].
        centers, noise: Int[R, C] and Int[R, M], ids.
        negatives: noise words of one prediction, as a sum of weights.
    """
    others = (centers.unsqueeze(-1) != noise.unsqueeze(1)).to(positives.dtype)
    return Targets(positives, torch.bmm(positives.mT, others) * (negatives / noise.shape[1]))


def sampling_loss(features: Tensor, centers: Tensor, noise: Tensor, targets: Targets) -> Tensor:
    """The loss of negative sampling, summed: -log σ(center · feature) - Σ log σ(-noise · feature) (Mikolov et al. 2013b, eq. 4).

    Args:
        features: Float[R, F, D].
        centers, noise: Float[R, C, D] and Float[R, M, D], output vectors.
    """
    positive = (logsigmoid(torch.bmm(centers, features.mT)) * targets.positives).sum()
    negative = (logsigmoid(-torch.bmm(features, noise.mT)) * targets.negatives).sum()
    return -(positive + negative)


def sampling_gradients(features: Tensor, centers: Tensor, noise: Tensor, targets: Targets) -> Gradients:
    """The gradients of `sampling_loss`, with the same arguments."""
    positive = torch.bmm(centers, features.mT).sigmoid_().sub_(1).mul_(targets.positives)
    negative = torch.bmm(features, noise.mT).sigmoid_().mul_(targets.negatives)
    by_features = torch.bmm(positive.mT, centers).baddbmm_(negative, noise)
    return Gradients(by_features, torch.bmm(positive, features), torch.bmm(negative.mT, features))


def mean_weights(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """For CBOW: Float[R, C, S], the weight of each surrounding word in a center's mean, and Float[R, C, C], which mean predicts
    which center."""
    counts = pairs.sum(-1, keepdim=True)
    return pairs / counts.clamp(min=1), torch.diag_embed((counts[..., 0] > 0).to(pairs.dtype))


class Word2Vec:
    """The two tables of vectors and how a step updates them by stochastic gradient descent.

    Attributes:
        inputs: Float[V, D], the word vectors.
        outputs: Float[V, D], the vectors of words that are predicted.
    """

    def __init__(self, words: int, config: VectorsConfig, random: np.random.Generator) -> None:
        self.config = config
        initial = random.random((words, config.dim), np.float32)
        self.inputs = torch.from_numpy((initial - 0.5) / config.dim)
        self.outputs = torch.zeros(words, config.dim)

    def step(self, blocks: Blocks, part: slice, noise: Tensor, rate: float, compute_loss: bool) -> float | None:
        """Update the vectors by some blocks; returns the loss per prediction if `compute_loss`.

        Args:
            noise: Int[r, M], ids.
        """
        around, centers = blocks.around[part], blocks.centers[part]
        around_vectors, center_vectors = embedding(around, self.inputs), embedding(centers, self.outputs)
        noise_vectors, pairs = embedding(noise, self.outputs), blocks.pairs(part)
        if self.config.method == "cbow":
            shares, pairs = mean_weights(pairs)
            features = torch.bmm(shares, around_vectors)
        else:
            features = around_vectors
        targets = targets_of(pairs, centers, noise, self.config.negatives)
        loss = None
        if compute_loss:
            total = sampling_loss(features, center_vectors, noise_vectors, targets)
            loss = float(total / pairs.sum().clamp(min=1))
        gradients = sampling_gradients(features, center_vectors, noise_vectors, targets)
        by_inputs = torch.bmm(shares.mT, gradients.features) if self.config.method == "cbow" else gradients.features
        _add(self.inputs, around, by_inputs.mul_(-rate))
        _add(self.outputs, centers, gradients.centers.mul_(-rate))
        _add(self.outputs, noise, gradients.noise.mul_(-rate))
        return loss


def _add(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows to a table; rows with the same id add up. With one thread, scatter is three times as fast as index_add."""
    table.scatter_add_(0, ids.reshape(-1, 1).expand(-1, table.shape[1]), rows.reshape(-1, table.shape[1]))


def train_word2vec(
    corpus: WordCorpus, config: VectorsConfig, tell: Callable[[str], None] | None = None
) -> tuple[npt.NDArray[np.float32], list[float]]:
    """Word vectors by skip-gram or CBOW: Float[V, D], and the mean loss per prediction in each epoch.

    Raises:
        HeddleError: no two words are neighbours after subsampling, or the vectors diverged.
    """
    assert config.window is not None
    assert config.epochs is not None
    assert config.learning_rate is not None
    random = np.random.default_rng(config.seed)
    model = Word2Vec(len(corpus.words), config, random)
    keep = keep_probability(corpus.counts, config.subsampling)
    expected = keep * corpus.counts
    most = max(1, int(MOST * expected.sum() / expected.max()))  # words in a step
    centers = min(CENTERS, most)
    size = most // centers
    noise = np.cumsum(corpus.counts**NOISE_POWER)
    total, done, losses, pace = config.epochs * len(corpus.ids), 0, list[float](), Pace(tell)
    for epoch in range(1, config.epochs + 1):
        epoch_losses: list[float] = []
        for blocks in blocks_of(corpus, config.window, keep, centers, random):
            samples = np.searchsorted(noise, random.random((len(blocks), NOISE)) * noise[-1], side="right")
            noise_ids = torch.from_numpy(np.minimum(samples, len(noise) - 1))
            for number, start in enumerate(range(0, len(blocks), size)):
                part = slice(start, start + size)
                progress = (done + blocks.read * start / len(blocks)) / total
                rate = config.learning_rate * max(LAST_RATE, 1 - progress)
                loss = model.step(blocks, part, noise_ids[part], rate, compute_loss=number % LOSS_INTERVAL == 0)
                if loss is not None:
                    epoch_losses.append(finite(loss, epoch))
                    pace.report(int(progress * total), _line(epoch, progress, loss))
            done += blocks.read
        losses.append(float(np.mean(epoch_losses)) if epoch_losses else 0.0)
        untrained = (1 + config.negatives) * math.log(2)
        if losses[-1] > 2 * untrained:
            raise HeddleError(
                f"the vectors diverged in epoch {epoch}: its loss is {losses[-1]:.4g}, and that of untrained vectors "
                f"{untrained:.4g}; set a lower learning_rate"
            )
    if not any(losses):
        fewer = "set subsampling = 0, or " if config.subsampling else ""
        raise HeddleError(f"no word was left with a neighbour to learn from: {fewer}give longer texts")
    finite(float(model.inputs.sum()), config.epochs)
    return model.inputs.numpy(), losses


def _line(epoch: int, progress: float, loss: float) -> Callable[[float], str]:
    return lambda rate: f"epoch {epoch}, {progress:.0%} done: loss {loss:.3f}, {rate:,.0f} words/s"
