"""GloVe: vectors whose products are the logarithms of how often words are neighbours (Pennington et al. 2014; L3-09)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

from heddle.config.vectors import VectorsConfig
from heddle.errors import HeddleError
from heddle.progress import Pace
from heddle.vectors.cooccurrence import Counts, count_pairs
from heddle.vectors.corpus import WordCorpus
from heddle.vectors.divergence import finite

MOST = 16  # average occurrences of the most frequent word in a step; its gradients are summed, so more would overshoot
LARGEST = 1 << 14  # maximum pairs in a step, so that they fit into the processor's caches


def weight(counts: Tensor, saturation: float = 100.0, exponent: float = 0.75) -> Tensor:
    """f(x) = min(1, (x / x_max)^α) of each count (Pennington et al. 2014, equation 9): Float[N]."""
    return (counts / saturation).pow(exponent).clamp(max=1)


def residuals(words: Tensor, contexts: Tensor, counts: Tensor) -> Tensor:
    """w · w̃ + b + b̃ - log x for N pairs: Float[N].

    Args:
        words: Float[N, D + 2], each a vector, its bias, and 1.
        contexts: Float[N, D + 2], each a vector, 1, and its bias, so that one product has both biases.
        counts: Float[N].
    """
    return (words * contexts).sum(-1) - counts.log()


def glove_loss(words: Tensor, contexts: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """The loss of equation 8, summed: f(x) (w · w̃ + b + b̃ - log x)². The arguments are those of `residuals`, and f(x), Float[N]."""
    return (weights * residuals(words, contexts, counts).square()).sum()


def glove_gradients(words: Tensor, contexts: Tensor, counts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `glove_loss` for words and contexts, Float[N, D + 2], 0 in the column of ones; and each pair's loss."""
    errors = residuals(words, contexts, counts)
    slope = (2 * weights * errors).unsqueeze(-1)
    by_words, by_contexts = slope * contexts, slope * words
    by_words[:, -1] = 0
    by_contexts[:, -2] = 0
    return by_words, by_contexts, weights * errors.square()


class Table:
    """A table of vectors that AdaGrad updates (Duchi et al. 2011), as in the program of GloVe's authors.

    There the sum of squares starts at 1 and adds up gradients times the learning rate η: the step is η g / √(1 + Σ (η g)²), which
    is AdaGrad with rate 1 and a sum that starts at 1 / η². With sums of plain gradients, the large gradients of the first steps,
    when products are far from log x, would make all later steps too short.

    Attributes:
        rows: Float[V, D + 2].
        squares: Float[V, D + 2].
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.squares = torch.ones_like(rows)

    def update(self, places: Tensor, gradients: Tensor, rate: float) -> None:
        """Add the step of each gradient, Float[N, D + 2], to the rows `places`, Int[N, D + 2], and its square to their sums."""
        steps = gradients.mul_(rate)
        self.rows.scatter_add_(0, places, steps / -embedding(places[:, 0], self.squares).sqrt_())
        self.squares.scatter_add_(0, places, steps.square_())


def train_glove(
    corpus: WordCorpus, config: VectorsConfig, tell: Callable[[str], None] | None = None
) -> tuple[npt.NDArray[np.float32], list[float]]:
    """Word vectors by GloVe, the sums of both tables (4.2): Float[V, D], and the mean loss per pair in each epoch.

    Raises:
        HeddleError: no two words are neighbours, or the vectors became NaN or infinite.
    """
    assert config.window is not None
    assert config.epochs is not None
    assert config.learning_rate is not None
    random, width = np.random.default_rng(config.seed), config.dim
    pairs = count_pairs(corpus, config.window, tell)
    if not len(pairs.sums):
        raise HeddleError("no two words are neighbours: every document has a single word; give longer texts")
    first, second, counts = both_ways(pairs, random)
    weights = weight(counts, config.saturation, config.exponent)
    words, contexts = (
        Table(torch.from_numpy((random.random((len(corpus.words), width + 2), np.float32) - 0.5) / width))
        for _ in range(2)
    )
    words.rows[:, -1] = contexts.rows[:, -2] = 1
    size = min(LARGEST, max(1, MOST * len(first) // int(torch.bincount(first).max())))
    starts = np.arange(0, len(first), size)
    losses, pace = list[float](), Pace(tell)
    for epoch in range(config.epochs):
        total = 0.0
        for number, start in enumerate(random.permutation(starts)):
            part = slice(int(start), int(start) + size)
            first_ids, second_ids = first[part], second[part]
            by_words, by_contexts, loss = glove_gradients(
                embedding(first_ids, words.rows), embedding(second_ids, contexts.rows), counts[part], weights[part]
            )
            words.update(_wide(first_ids, width + 2), by_words, config.learning_rate)
            contexts.update(_wide(second_ids, width + 2), by_contexts, config.learning_rate)
            total += float(loss.sum())
            done = epoch * len(starts) + number + 1
            pace.report(done * size, _line(epoch + 1, done / (config.epochs * len(starts)), float(loss.mean())))
        losses.append(finite(total / len(first), epoch + 1))
    return (words.rows + contexts.rows)[:, :width].numpy(), losses


def both_ways(pairs: Counts, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Each pair in both orders (word, context), shuffled: Int[N], Int[N], Float[N]."""
    is_unequal = pairs.first != pairs.second
    first = np.concatenate([pairs.first, pairs.second[is_unequal]])
    second = np.concatenate([pairs.second, pairs.first[is_unequal]])
    sums = np.concatenate([pairs.sums, pairs.sums[is_unequal]]).astype(np.float32)
    order = random.permutation(len(first))
    return torch.from_numpy(first[order]), torch.from_numpy(second[order]), torch.from_numpy(sums[order])


def _wide(ids: Tensor, width: int) -> Tensor:
    return ids.unsqueeze(1).expand(-1, width)


def _line(epoch: int, progress: float, loss: float) -> Callable[[float], str]:
    return lambda rate: f"epoch {epoch}, {progress:.0%} done: loss {loss:.4f}, {rate:,.0f} pairs/s"
