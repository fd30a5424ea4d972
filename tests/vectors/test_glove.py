"""GloVe: its weights, its counts, its gradients and AdaGrad's steps."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import VectorsConfig
from heddle.text.word_splitter import WordSplitter
from heddle.vectors import cooccurrence, train_vectors
from heddle.vectors.cooccurrence import count_pairs
from heddle.vectors.corpus import read_corpus
from heddle.vectors.glove import Table, both_ways, glove_gradients, glove_loss, weight
from tests.refusing import refusal

from .planted import planted


@pytest.mark.lecture("L3-09")
def test_the_weight_of_a_count() -> None:
    """f(x) = min(1, (x / 100)^0.75)."""
    assert weight(torch.tensor([50.0, 100.0, 200.0]).double()).tolist() == pytest.approx(
        [0.594603557501, 1, 1], abs=1e-12
    )
    assert weight(torch.tensor([4.0]), saturation=16, exponent=0.5).item() == 0.5


@pytest.mark.parametrize("pairs", [8, 100, 1 << 22])
@pytest.mark.parametrize("window", [1, 3, 10])
def test_counts_are_those_counted_by_hand(pairs: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the pieces are in which the text is read."""
    monkeypatch.setattr(cooccurrence, "PAIRS", pairs)
    texts = ["a b a a c", "b", *planted(1, 20), "c b a"]
    corpus = read_corpus(texts, WordSplitter(), 1)
    expected: dict[tuple[str, str], float] = defaultdict(float)
    for text in texts:
        words = text.split()
        for i, word in enumerate(words):
            for j in range(max(0, i - window), min(len(words), i + window + 1)):
                if i != j:
                    expected[word, words[j]] += 1 / abs(i - j)
    first, second, sums = (
        tensor.tolist() for tensor in both_ways(count_pairs(corpus, window), np.random.default_rng(0))
    )
    counts = {(corpus.words[i], corpus.words[j]): x for i, j, x in zip(first, second, sums, strict=True)}
    assert len(counts) == len(first)
    assert counts == pytest.approx(dict(expected), rel=1e-6)


def rows(*, ones: int) -> torch.Tensor:
    made = torch.randn(5, 6, dtype=torch.float64)
    made[:, ones] = 1
    return made


def test_gradients_are_those_of_autograd() -> None:
    """In fp64, of the loss with vectors and biases apart."""
    words, contexts, counts = rows(ones=-1), rows(ones=-2), torch.rand(5, dtype=torch.float64) * 200
    weights = weight(counts)
    w, b = (part.clone().requires_grad_() for part in (words[:, :4], words[:, 4]))
    c, d = (part.clone().requires_grad_() for part in (contexts[:, :4], contexts[:, 5]))
    loss = sum(weights[n] * (w[n] @ c[n] + b[n] + d[n] - torch.log(counts[n])) ** 2 for n in range(5))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert glove_loss(words, contexts, counts, weights).item() == pytest.approx(loss.item(), rel=1e-12)
    by_words, by_contexts, each = glove_gradients(words, contexts, counts, weights)
    assert each.sum().item() == pytest.approx(loss.item(), rel=1e-12)
    for ours, reference in ((by_words[:, :4], w), (by_words[:, 4], b), (by_contexts[:, :4], c), (by_contexts[:, 5], d)):
        assert reference.grad is not None
        assert torch.allclose(ours, reference.grad, rtol=1e-10)
    assert by_words[:, 5].abs().sum() == 0
    assert by_contexts[:, 4].abs().sum() == 0


def test_steps_are_adagrads() -> None:
    """torch's AdaGrad with rate 1 whose sums start at 1 / η², on a row that two pairs of a step share and one that none has."""
    table, places = Table(torch.randn(3, 4).double()), torch.tensor([0, 2, 0, 2, 2])
    weights = torch.nn.Parameter(table.rows.clone())
    optimizer = torch.optim.Adagrad([weights], lr=1.0, initial_accumulator_value=1 / 0.05**2, eps=0.0)
    for place in places.tolist():  # one at a time, where a step is exactly AdaGrad's
        gradient = torch.randn(1, 4).double()
        dense = torch.zeros(3, 4).double()
        dense[place] = gradient
        # torch adds the square before it divides, GloVe's program after.
        before = table.squares[place].clone()
        table.update(torch.tensor([[place]]).expand(-1, 4), gradient.clone(), 0.05)
        weights.grad = dense
        optimizer.step()
        assert torch.allclose(table.squares, optimizer.state[weights]["sum"] * 0.05**2)
        assert torch.allclose((table.squares[place] - before).sqrt(), (0.05 * gradient[0]).abs())
        with torch.no_grad():
            weights[place] = table.rows[place]
    start, gradients = Table(torch.zeros(3, 4).double()), torch.randn(5, 4).double()
    start.squares.fill_(4.0)
    start.update(places[:, None].expand(-1, 4), gradients.clone(), 0.1)
    assert torch.allclose(start.rows[2], -0.05 * gradients[[1, 3, 4]].sum(0))
    assert torch.allclose(start.squares[0], 4 + (0.1 * gradients[[0, 2]]).square().sum(0))
    assert start.rows[1].abs().sum() == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "glove"}, "no two words are neighbours: every document has a single word; give longer texts"),
        (
            {"method": "cbow"},
            "no word was left with a neighbour to learn from: set subsampling = 0, or give longer texts",
        ),
        ({"subsampling": 0.0}, "no word was left with a neighbour to learn from: give longer texts"),
    ],
)
def test_words_that_are_alone_are_refused(settings: dict[str, Any], reason: str) -> None:
    assert refusal(lambda: train_vectors(["a", "b"] * 9, VectorsConfig.of(settings))) == reason


def test_vectors_are_fitted_to_the_counts() -> None:
    """With enough numbers, products and biases come near the logarithms; the words' vectors are sums of both tables."""
    vectors = train_vectors(planted(0, 300), VectorsConfig(method="glove", dim=32, epochs=100, min_count=1))
    assert vectors.losses[-1] < 0.1 * vectors.losses[0]
