"""Neighbours, analogies and files, beside gensim's."""

from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from heddle.convert.word_vectors import Form
from heddle.errors import HeddleError
from heddle.vectors import WordVectors
from tests.refusing import refusal

from .planted import keyed

WORDS = ("the", "naïve", "日本", "12", ",", "cat", "dog", "a/b")
VECTORS = WordVectors(WORDS, np.random.default_rng(0).normal(size=(8, 5)).astype("f4"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves GloVe's file open
@pytest.mark.parametrize(
    ("name", "form", "binary", "headless"),
    [
        ("v.txt", None, False, False),
        ("v.txt", "glove", False, True),
        ("v.bin", None, True, False),
        ("v.vec", "binary", True, False),
    ],
)
def test_a_file_has_the_same_numbers_for_gensim_and_for_heddle(
    tmp_path: Path, name: str, form: Form | None, binary: bool, headless: bool
) -> None:
    file = tmp_path / name
    VECTORS.save(file, form)
    reference = KeyedVectors.load_word2vec_format(str(file), binary=binary, no_header=headless)
    assert tuple(reference.index_to_key) == WORDS
    assert np.array_equal(reference.vectors, VECTORS.array)
    ours = WordVectors.read(file)
    assert ours.words == WORDS
    assert np.array_equal(ours.array, VECTORS.array)


def test_files_of_gensim_are_read(tmp_path: Path) -> None:
    for binary in (False, True):
        keyed(VECTORS).save_word2vec_format(str(tmp_path / "v"), binary=binary)
        assert np.allclose(WordVectors.read(tmp_path / "v").array, VECTORS.array, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_neighbours_and_analogies_are_gensims(count: int) -> None:
    reference = keyed(VECTORS)
    for word in WORDS:
        expected = reference.most_similar(word, topn=count)
        neighbours = VECTORS.near(word, count)
        assert [other for other, _ in neighbours] == [other for other, _ in expected]
        assert [cosine for _, cosine in neighbours] == pytest.approx([cosine for _, cosine in expected], abs=1e-6)
    expected = reference.most_similar(positive=["cat", "12"], negative=["dog"], topn=count)
    neighbours = VECTORS.analogy("dog", "cat", "12", count)
    assert [other for other, _ in neighbours] == [other for other, _ in expected]
    assert [cosine for _, cosine in neighbours] == pytest.approx([cosine for _, cosine in expected], abs=1e-6)


def test_a_vector_by_its_word() -> None:
    assert VECTORS["cat"].tolist() == VECTORS.array[5].tolist()
    assert len(VECTORS) == 8
    assert refusal(lambda: VECTORS["cats"]) == "'cats' is not one of the 8 words with a vector. Did you mean 'cat'?"
    assert "'x' is not one of the 8 words" in refusal(lambda: VECTORS.analogy("cat", "x", "dog"))


def test_a_vector_of_zeros_is_near_nothing() -> None:
    vectors = WordVectors(("a", "b", "c"), np.array([[0, 0], [1, 2], [2, 4]], "f4"))
    assert vectors.near("b") == [("c", pytest.approx(1.0)), ("a", 0.0)]
    assert [cosine for _, cosine in vectors.near("a")] == [0.0, 0.0]


def test_a_file_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "v.txt"
    file.write_text("mine")
    assert "v.txt: already exists" in refusal(lambda: VECTORS.save(file))
    assert file.read_text() == "mine"
    VECTORS.save(file, overwrite=True)
    assert len(WordVectors.read(file)) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["v.txt"]


@pytest.mark.parametrize(
    ("words", "array", "message"),
    [
        (("a b",), np.ones((1, 2), "f4"), "words: 'a b' is empty or contains whitespace"),
        (("",), np.ones((1, 2), "f4"), "words: '' is empty"),
        (("a",), np.array([[np.nan, 1]], "f4"), "array has NaN or infinite values"),
        (("a", "b"), np.ones((1, 2), "f4"), "array has shape [1, 2]; 2 words need [2, width]"),
    ],
)
def test_what_no_file_can_hold_is_refused(
    tmp_path: Path, words: tuple[str, ...], array: "np.typing.NDArray[np.float32]", message: str
) -> None:
    assert message in refusal(lambda: WordVectors(words, array).save(tmp_path / "v"))
    assert not list(tmp_path.iterdir())


def test_a_file_without_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("0 5\n")
    assert refusal(lambda: WordVectors.read(tmp_path / "none.txt")).endswith("none.txt: there are no words")


def test_a_bin_file_is_binary(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"v.bin: form = glove is text: name a .txt file"):
        VECTORS.save(tmp_path / "v.bin", "glove")
