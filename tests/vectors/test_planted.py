"""Vectors of a text with planted meanings have them, by gensim's own answers; and a model starts from their file."""

from pathlib import Path

import pytest
import torch
from gensim.models import KeyedVectors, Word2Vec

import heddle
from heddle.config import VectorsConfig
from heddle.config.vectors import Method
from heddle.convert import load_vectors
from heddle.vectors import WordVectors, train_vectors

from .planted import SYNONYMS, keyed, planted, share_right

TEXTS = planted(0, 3000)
SETTINGS = {"dim": 16, "min_count": 1}


@pytest.fixture(scope="module")
def learned() -> dict[str, WordVectors]:
    more: dict[Method, dict[str, float]] = {"skipgram": {"subsampling": 0.0}, "cbow": {"subsampling": 0.0}, "glove": {}}
    return {
        method: train_vectors(TEXTS, VectorsConfig.of({"method": method, **SETTINGS, **settings}))
        for method, settings in more.items()
    }


@pytest.mark.lecture("L3-08")
@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_planted_synonyms_are_each_others_neighbours(learned: dict[str, WordVectors], method: str) -> None:
    one, other = SYNONYMS
    assert learned[method].near(one, 1)[0][0] == other
    assert learned[method].near(other, 1)[0][0] == one


@pytest.mark.parametrize("method", ["skipgram", "cbow", "glove"])
def test_analogies_come_out_as_gensim_answers_them(learned: dict[str, WordVectors], method: str) -> None:
    assert share_right(keyed(learned[method])) >= 0.95


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_vectors_are_as_good_as_gensims(method: str) -> None:
    """On texts that are hardly long enough; a mean over three seeds."""
    ours, reference = 0.0, 0.0
    for seed in range(3):
        texts = planted(seed, 900)
        config = VectorsConfig.of({"method": method, "subsampling": 0.0, "seed": seed, **SETTINGS})
        ours += share_right(keyed(train_vectors(texts, config))) / 3
        sentences = [text.split() for text in texts]
        model = Word2Vec(
            sentences, sg=int(method == "skipgram"), vector_size=16, min_count=1, sample=0, seed=seed + 1, workers=1
        )
        reference += share_right(model.wv) / 3
    assert ours >= reference - 0.1


def test_the_loss_falls(learned: dict[str, WordVectors]) -> None:
    for method, vectors in learned.items():
        assert vectors.losses[-1] < vectors.losses[0], method
    assert learned["glove"].tokens == 5 * len(TEXTS)


@pytest.mark.lecture("L3-08", "L3-09")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves GloVe's file open
@pytest.mark.parametrize("name", ["v.txt", "v.bin", "glove.txt"])
def test_a_model_starts_from_the_file(learned: dict[str, WordVectors], tmp_path: Path, name: str) -> None:
    """The words tokenizer knows every word; their rows are the vectors, and all others keep their initial values."""
    file = tmp_path / name
    vectors = learned["glove" if name == "glove.txt" else "skipgram"]
    vectors.save(file, "glove" if name == "glove.txt" else None)
    gensims = KeyedVectors.load_word2vec_format(str(file), binary=file.suffix == ".bin", no_header=name == "glove.txt")
    tokenizer = heddle.train_tokenizer("words", [*TEXTS, "and another word"])
    model = heddle.build(heddle.sized(1, vocab_size=tokenizer.vocab_size, context=8, dim=16))
    before = model.embedding.weight.detach().clone()
    assert load_vectors(model, tokenizer, file).unused == 0
    ids = [tokenizer.encode(word)[0] for word in vectors.words]
    assert torch.equal(model.embedding.weight[ids], torch.from_numpy(vectors.array))
    assert torch.equal(model.embedding.weight[ids], torch.from_numpy(gensims[list(vectors.words)]))
    rest = sorted(set(range(tokenizer.vocab_size)) - set(ids))
    assert rest
    assert torch.equal(model.embedding.weight[rest], before[rest])
