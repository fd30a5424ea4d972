"""Negative sampling: its pairs, its noise, its gradients, and that a seed decides everything."""

import math
import re

import numpy as np
import pytest
import torch

from heddle import progress
from heddle.config import VectorsConfig
from heddle.text.word_splitter import WordSplitter
from heddle.vectors import train_vectors, windows, word2vec
from heddle.vectors.corpus import WordCorpus, read_corpus
from heddle.vectors.windows import blocks_of, keep_probability
from heddle.vectors.word2vec import Word2Vec, mean_weights, sampling_gradients, sampling_loss, targets_of
from tests.refusing import refusal

from .planted import planted

TEXT = "the warp is held and the weft is thrown and the heddle lifts the threads that it owns " * 30


def corpus_of(*texts: str) -> WordCorpus:
    return read_corpus(texts, WordSplitter(), 1)


@pytest.mark.parametrize("centers", [1, 4, 32])
def test_pairs_are_those_of_the_windows(centers: int) -> None:
    """Every word with all words at most its window away, in its document; counted by hand."""
    corpus = corpus_of("a b c d e f g", "h", "i j k a b c")
    everything = np.ones(len(corpus.words))
    (blocks,) = blocks_of(corpus, 3, everything, centers, np.random.default_rng(1))
    result = []
    pairs = blocks.pairs(slice(None))
    for row, column, place in pairs.nonzero().tolist():
        result.append((int(blocks.centers[row, column]), int(blocks.around[row, place])))
    document = np.searchsorted(corpus.starts, np.arange(len(corpus.ids)), side="right")
    # The blocks are shuffled; their first words say where they are.
    order = np.random.default_rng(1)
    order.random(len(corpus.ids), np.float32)
    reaches = order.integers(1, 4, len(corpus.ids))
    expected = [
        (int(corpus.ids[i]), int(corpus.ids[j]))
        for i in range(len(corpus.ids))
        for j in range(len(corpus.ids))
        if i != j and abs(i - j) <= reaches[i] and document[i] == document[j]
    ]
    assert sorted(result) == sorted(expected)
    assert len(expected) > 20
    assert blocks.read == len(corpus.ids)


def test_windows_are_drawn_evenly() -> None:
    (blocks,) = blocks_of(corpus_of(TEXT * 8), 5, np.ones(20), 32, np.random.default_rng(0))
    shares = torch.bincount(blocks.reach.flatten())[1:].float() / len(blocks.reach.flatten())
    assert len(shares) == 5
    assert shares.sub(0.2).abs().max() < 0.03


def test_frequent_words_are_left_out_as_the_paper_says() -> None:
    counts = np.array([9000, 900, 100])
    assert keep_probability(counts, 0.09).tolist() == pytest.approx([math.sqrt(0.1), 1.0, 1.0])
    assert keep_probability(counts, 0.0).tolist() == [1.0, 1.0, 1.0]
    corpus = corpus_of("a " * 4000 + "b " * 1000)
    keep = keep_probability(corpus.counts, 0.2)
    left = torch.cat(
        [blocks.centers[blocks.reach > 0] for blocks in blocks_of(corpus, 2, keep, 8, np.random.default_rng(0))]
    )
    assert (left == 0).sum().item() == pytest.approx(2000, rel=0.06)
    assert (left == 1).sum().item() == 1000


def test_noise_is_drawn_by_the_power_of_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(w) is proportional to its count to the 3/4 (Mikolov et al. 2013b, 2.2)."""
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(
        Word2Vec, "step", lambda self, blocks, part, noise, rate, compute_loss: drawn.append(noise) or 1.0
    )
    corpus = corpus_of("a " * 8100 + "b " * 1600 + "c " * 300)
    word2vec.train_word2vec(corpus, VectorsConfig(dim=2, subsampling=0, epochs=1).complete())
    shares = torch.bincount(torch.cat(drawn).flatten()).double()
    expected = torch.tensor([8100.0, 1600.0, 300.0]).double() ** 0.75
    assert (shares / shares.sum() - expected / expected.sum()).abs().max() < 0.01


def test_a_prediction_has_as_many_noise_words_as_asked_for() -> None:
    """As a sum of weights; a noise word that is the predicted word counts for nothing."""
    pairs, centers, noise = torch.ones(1, 2, 3), torch.tensor([[7, 8]]), torch.tensor([[1, 2, 8, 4]])
    targets = targets_of(pairs, centers, noise, negatives=6)
    assert targets.negatives[0, 0].tolist() == [3.0, 3.0, 1.5, 3.0]


def problem(method: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    pairs = (torch.rand(2, 3, 5, generator=generator) < 0.5).double()
    pairs[0, 1] = 0  # a word without neighbours
    ids = [torch.randint(4, (2, size), generator=generator) for size in (3, 6)]
    vectors = [torch.randn(2, size, 4, generator=generator, dtype=torch.float64) for size in (5, 3, 6)]
    return pairs, *ids, *vectors


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_gradients_are_those_of_autograd(method: str) -> None:
    """In fp64, of the loss written out pair by pair; CBOW's through the mean of the vectors around."""
    pairs, centers, noise, *vectors = problem(method)
    around, written, drawn = (vector.clone().requires_grad_() for vector in vectors)
    total = torch.zeros((), dtype=torch.float64)
    for r, c, s in (pairs if method == "skipgram" else pairs.amax(-1, keepdim=True)).nonzero().tolist():
        mean = (around[r] * pairs[r, c, :, None]).sum(0) / pairs[r, c].sum()
        feature = around[r, s] if method == "skipgram" else mean
        total = total - torch.log(torch.sigmoid(written[r, c] @ feature))
        for m in range(6):
            if noise[r, m] != centers[r, c]:
                total = total - 5 / 6 * torch.log(torch.sigmoid(-drawn[r, m] @ feature))
    total.backward()
    if method == "skipgram":
        features, positives = vectors[0], pairs
    else:
        shares, positives = mean_weights(pairs)
        features = torch.bmm(shares, vectors[0])
    targets = targets_of(positives, centers, noise, 5)
    assert sampling_loss(features, vectors[1], vectors[2], targets).item() == pytest.approx(total.item(), rel=1e-12)
    gradients = sampling_gradients(features, vectors[1], vectors[2], targets)
    by_around = gradients.features if method == "skipgram" else torch.bmm(shares.mT, gradients.features)
    for ours, reference in zip((by_around, gradients.centers, gradients.noise), (around, written, drawn), strict=True):
        assert reference.grad is not None
        assert torch.allclose(ours, reference.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_a_step_is_gradient_descent(method: str) -> None:
    """Each word's row moves by the rate times the sum of its gradients, by autograd through a lookup."""
    corpus = corpus_of(TEXT)
    config = VectorsConfig.of({"method": method, "dim": 6, "negatives": 3}).complete()
    random = np.random.default_rng(0)
    (blocks,) = blocks_of(corpus, 4, np.ones(len(corpus.words)), 8, random)
    model = Word2Vec(len(corpus.words), config, random)
    model.outputs += torch.from_numpy(random.normal(size=model.outputs.shape).astype("f4"))
    inputs, outputs = model.inputs.clone().requires_grad_(), model.outputs.clone().requires_grad_()
    part, noise = slice(2, 5), torch.from_numpy(random.integers(len(corpus.words), size=(3, 10)))
    pairs = blocks.pairs(part)
    features = inputs[blocks.around[part]]
    if method == "cbow":
        shares, pairs = mean_weights(pairs)
        features = torch.bmm(shares, features)
    targets = targets_of(pairs, blocks.centers[part], noise, 3)
    loss = sampling_loss(features, outputs[blocks.centers[part]], outputs[noise], targets)
    loss.backward()
    step_loss = model.step(blocks, part, noise, 0.1, compute_loss=True)
    assert step_loss == pytest.approx(float(loss.detach() / pairs.sum()), rel=1e-5)
    for table, before in ((model.inputs, inputs), (model.outputs, outputs)):
        assert before.grad is not None
        assert torch.allclose(table, before.detach() - 0.1 * before.grad, atol=1e-5)


@pytest.mark.parametrize("method", ["skipgram", "cbow", "glove"])
def test_a_seed_decides_every_number(method: str) -> None:
    texts = planted(3, 300)
    one, same, other = (
        train_vectors(texts, VectorsConfig.of({"method": method, "dim": 8, "epochs": 2, "seed": seed}))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one.array, same.array)
    assert one.losses == same.losses
    assert not np.array_equal(one.array, other.array)


def test_chunks_of_a_text_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CHUNK", 50)
    corpus = corpus_of(TEXT)
    result = list(blocks_of(corpus, 5, np.ones(len(corpus.words)), 16, np.random.default_rng(0)))
    assert sum(blocks.read for blocks in result) == len(corpus.ids)
    words = torch.cat([blocks.centers[blocks.reach > 0] for blocks in result])
    assert torch.bincount(words).tolist() == corpus.counts.tolist()


@pytest.mark.parametrize("method", ["skipgram", "cbow", "glove"])
def test_a_rate_that_diverges_is_refused(method: str) -> None:
    config = VectorsConfig.of({"method": method, "dim": 8, "learning_rate": 10, "min_count": 1, "epochs": 30})
    message = refusal(lambda: train_vectors(planted(0, 400), config))
    assert re.match(r"the vectors (became NaN or infinite|diverged) in epoch \d", message)
    assert message.endswith("set a lower learning_rate")


def test_a_loss_above_that_of_untrained_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stay finite: σ saturates, and gradients with it."""
    monkeypatch.setattr(Word2Vec, "step", lambda *arguments, **more: 8.5)
    message = refusal(lambda: train_vectors([TEXT], VectorsConfig(dim=2)))
    assert message.startswith("the vectors diverged in epoch 1: its loss is 8.5, and that of untrained vectors 4.159; ")
    monkeypatch.setattr(Word2Vec, "step", lambda *arguments, **more: 8.3)
    assert train_vectors([TEXT], VectorsConfig(dim=2)).losses == pytest.approx([8.3] * 5)


@pytest.mark.parametrize("method", ["skipgram", "cbow", "glove"])
def test_long_training_tells_its_rate(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    texts, config = planted(0, 200), VectorsConfig.of({"method": method, "dim": 4, "epochs": 1})
    train_vectors(texts, config, messages.append)
    (line,) = messages
    assert line.startswith("1,000 words, ")
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    train_vectors(texts, config, messages.append)
    assert any("epoch 1, " in line and ("words/s" in line or "pairs/s" in line) for line in messages)


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    train_vectors([TEXT], VectorsConfig(dim=2, epochs=1))
    assert torch.get_num_threads() == before
