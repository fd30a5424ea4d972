"""Words are cut as the words tokenizer cuts them, counted, and kept if they are frequent enough."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from heddle.text import train_tokenizer, word_splitter
from heddle.text.word_splitter import WordSplitter
from heddle.vectors.corpus import read_corpus
from tests.refusing import refusal

WEIRD = "naïve e\u0301t\u00e9 日本語、テスト ١٢٣ _x a\u200bb x² \u0903क्षि 'n' 1,000\r\n\tend \U0001d400\u2028İ"
CUTTER = WordSplitter()


def pieces(text: str, cutter: WordSplitter = CUTTER) -> list[str]:
    return [piece for part in cutter(text) for piece in part]


@example(WEIRD)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_pieces_are_those_of_the_tokenizer(text: str) -> None:
    tokenizer = train_tokenizer("words", [text])
    expected = [piece for _, piece in tokenizer.pieces(text) if not piece.isspace()]
    assert pieces(text) == expected


def test_a_word_across_a_seam_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pieces(WEIRD)
    for size in range(1, 12):
        monkeypatch.setattr(word_splitter, "SLICE", size)
        assert pieces(WEIRD) == whole


def test_options_of_the_cut() -> None:
    assert pieces("The cat's 2 İ.", WordSplitter(lowercase=True, punctuation=False)) == ["the", "cat", "s", "2", "i̇"]
    assert pieces("") == []


def test_the_vocabulary_is_the_tokenizers() -> None:
    """Most frequent first and ties in the order of characters: the tokenizer's ids less one, if no blank has one."""
    texts = ["b a, b c a d", "", "c, é d d"]
    corpus = read_corpus(texts, CUTTER, 2)
    tokenizer = train_tokenizer("words", [text.replace(", ", ",") for text in texts])
    assert corpus.words == ("d", ",", "a", "b", "c")
    assert [tokenizer.encode(word)[0] for word in corpus.words] == [1, 2, 3, 4, 5]
    assert corpus.counts.tolist() == [3, 2, 2, 2, 2]
    assert [corpus.words[number] for number in corpus.ids] == ["b", "a", ",", "b", "c", "a", "d", "c", ",", "d", "d"]
    assert (corpus.starts.tolist(), corpus.read) == ([0, 7], 12)


def test_documents_that_lose_all_their_words() -> None:
    corpus = read_corpus(["x", "a b", "y", "a b", "z", ""], CUTTER, 2)
    assert (corpus.ids.tolist(), corpus.starts.tolist()) == ([0, 1, 0, 1], [0, 2])


@pytest.mark.parametrize(
    ("texts", "count", "message"),
    [
        ([], 1, "0 words that occur; vectors need two or more: give more text"),
        ([" \n"], 1, "0 words"),
        (
            ["a a a b"],
            2,
            "1 word that occurs at least min_count = 2 times; vectors need two or more: lower min_count or",
        ),
        (["a \ud800 b"], 1, "lone surrogate"),
    ],
)
def test_too_few_words_are_refused(texts: list[str], count: int, message: str) -> None:
    assert message in refusal(lambda: read_corpus(texts, CUTTER, count))


def test_every_word_gets_one_id() -> None:
    words = [f"w{number}" for number in np.random.default_rng(0).integers(50, size=1000)]
    corpus = read_corpus([" ".join(words)], CUTTER, 1)
    assert [corpus.words[number] for number in corpus.ids] == words
