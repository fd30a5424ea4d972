"""Words, WordPiece and Unigram: what each promises, the lectures' example both ways, and all kinds side by side."""

import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import HeddleError
from heddle.text import train_tokenizer
from heddle.text.bpe import BPE
from heddle.text.compare import compare
from heddle.text.file import bpe_model, byte_level, byte_symbols, describe
from heddle.text.kinds import KINDS
from heddle.text.unigram import Unigram
from heddle.text.words import WordPiece, Words
from tests.lectures.golden import CASES

EXAMPLE = CASES["subword_examples"]
RAIN = "It is raining. It rains, and the rain is warm.\nIs it raining in the train? café naïve — 雨 " * 10
WORDS = train_tokenizer("words", [RAIN])
PIECES = train_tokenizer("wordpiece", [RAIN], 120)
UNIGRAM = train_tokenizer("unigram", [RAIN], 380)


def witness(tokenizer: Any, directory: Path) -> tokenizers.Tokenizer:
    """`tokenizers` on the saved file, special tokens read as plain text."""
    tokenizer.save(directory)
    library = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.encode_special_tokens = True
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tokenizers.Tokenizer]:
    made = {"words": WORDS, "wordpiece": PIECES, "unigram": UNIGRAM}
    return {kind: witness(tokenizer, tmp_path_factory.mktemp(kind)) for kind, tokenizer in made.items()}


# The lectures' example


@pytest.mark.lecture("L2-47", "L2-48")
def test_wordpiece_takes_the_longest_piece_as_the_example_has_it() -> None:
    inputs, outputs = EXAMPLE["inputs"], EXAMPLE["outputs"]
    tokenizer = WordPiece.of(inputs["wordpiece_vocab"])
    split_pieces = [[piece for _, piece in tokenizer.pieces(word)] for word in inputs["words"]]
    assert split_pieces == outputs["wordpiece"]
    assert tokenizer.encode("unbelievable raining") == [0, 1, 2, 3, 4]
    assert tokenizer.decode([0, 1, 2, 3, 4]) == "unbelievable raining"


@pytest.mark.lecture("L2-47", "L2-48")
def test_bpe_merges_the_lowest_rank_first_as_the_example_has_it() -> None:
    inputs, outputs = EXAMPLE["inputs"], EXAMPLE["outputs"]
    vocab = byte_symbols()
    for left, right in inputs["bpe_merges"]:
        vocab[left + right] = len(vocab)
    merges = [" ".join(pair) for pair in inputs["bpe_merges"]]
    tokenizer = BPE(describe(bpe_model(vocab, merges), byte_level(use_regex=True), byte_level(), ()))
    split_pieces = [[piece for _, piece in tokenizer.pieces(word)] for word in inputs["words"]]
    assert split_pieces == outputs["bpe"]


# Trained on a text


@cache
def manual() -> tuple[str, str, Counter[str]]:
    """The language reference that Python brings, a text to train on and another, and the words of the first by frequency."""
    topics = "\n".join(import_module("pydoc_data.topics").topics.values())
    text, other = topics[:150_000], topics[150_000:300_000]
    return text, other, Counter(re.findall(r"(?<=[ \n])[a-z]+(?=[ \n])", text))


@pytest.mark.lecture("L2-48")
def test_a_trained_bpe_has_common_words_whole_and_cuts_rare_ones() -> None:
    """The 50 most frequent words are a token each; 389 words that occur once are cut, into 3.98 pieces on average."""
    text, _, words = manual()
    tokenizer = train_tokenizer("bpe", [text], 1000)
    common = [word for word, _ in words.most_common(50)]
    rare = [word for word, count in words.items() if count == 1 and text.count(word) == 1]
    pieces = [len(tokenizer.encode(f" {word}")) for word in rare]
    assert sum(len(tokenizer.encode(f" {word}")) == 1 for word in common) >= 46
    assert min(pieces) >= 2
    assert 3 < sum(pieces) / len(rare) < 5
    assert tokenizer.decode(tokenizer.encode(" ".join(rare))) == " ".join(rare)


@pytest.mark.lecture("L2-46")
def test_characters_are_long_words_are_many_and_pieces_lie_between() -> None:
    """Of 150,000 other characters: 103 kinds of characters, 2,426 of words of which 3 % are missing still, and 1,000 pieces."""
    text, other, _ = manual()
    characters = train_tokenizer("characters", [text + other])
    words, pieces = train_tokenizer("words", [text]), train_tokenizer("bpe", [text], 1000)
    long, short = characters.encode(other), pieces.encode(other)
    assert len(long) == len(other) > 2.5 * len(short)
    assert characters.vocab_size < 200 < pieces.vocab_size == 1000
    assert words.vocab_size > 2 * pieces.vocab_size
    assert train_tokenizer("words", [text + other]).vocab_size > 1.3 * words.vocab_size
    ids = words.encode(other)
    assert ids.count(0) > 0.02 * len(ids)
    assert pieces.decode(short) == other != words.decode(ids)


# Words


@pytest.mark.lecture("L2-46")
def test_words_are_few_and_unknown_ones_are_unk() -> None:
    assert [piece for _, piece in WORDS.pieces("It is raining.")] == ["It", "is", "raining", "."]
    assert isinstance(WORDS, Words)
    assert WORDS.unknown == 0
    assert WORDS.encode("It is snowing.")[2] == 0
    assert WORDS.decode(WORDS.encode("It is snowing.")) == "It is <unk>."


def test_the_most_frequent_words_are_kept() -> None:
    tokenizer = train_tokenizer("words", ["a b b c c c d d d d"], 4)
    assert [tokenizer.piece(i) for i in range(4)] == ["<unk>", "d", "c", "<|endoftext|>"]
    assert tokenizer.encode("a b c d") == [0, 0, 2, 1]


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
def test_spaces_other_than_one_between_words_are_kept(kind: str) -> None:
    texts = ["a  b\n\tb a . a,b _a"]
    tokenizer = train_tokenizer(kind, texts * 2, 100)
    for text in (*texts, " a", "a ", "a b", ".a . b", "  ", "b\n\n a", "_a b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
@given(text=st.text(st.sampled_from("Itisra ngwm.,?\n é雨—_\u0301½²٣\u200d\u2028\xa0"), max_size=30))
def test_text_without_unknown_parts_comes_back(kind: str, text: str) -> None:
    tokenizer = {"words": WORDS, "wordpiece": PIECES}[kind]
    ids = tokenizer.encode(text)
    if getattr(tokenizer, "unknown", None) not in ids:
        assert tokenizer.decode(ids) == text


@given(text=st.text("ab \u0301½²٣_.-\u200d\ua9f7\U0001e900", max_size=16))
def test_any_text_of_known_words_comes_back(text: str) -> None:
    tokenizer = train_tokenizer("words", [text, "x"])
    assert 0 not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
@given(text=st.text())
def test_ids_of_words_are_those_of_tokenizers(kind: str, text: str, library: dict[str, tokenizers.Tokenizer]) -> None:
    tokenizer = {"words": WORDS, "wordpiece": PIECES}[kind]
    for sample in (text, f"{text} rain{text}ing"):
        ids = tokenizer.encode(sample)
        assert ids == library[kind].encode(sample).ids


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
@given(data=st.data())
def test_whoever_reads_the_file_joins_words_alike(
    kind: str, data: st.DataObject, library: dict[str, tokenizers.Tokenizer]
) -> None:
    tokenizer = {"words": WORDS, "wordpiece": PIECES}[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=10))
    assert tokenizer.decode(ids) == library[kind].decode(ids, skip_special_tokens=False)


# WordPiece


@pytest.mark.lecture("L2-47")
def test_a_piece_inside_a_word_shows_its_mark_and_spells_without_it() -> None:
    pieces = PIECES.pieces("raining trains")
    assert any(piece.startswith("##") for _, piece in pieces)
    assert PIECES.decode([i for i, _ in pieces]) == "raining trains"
    assert "##" not in PIECES.decode_bytes([i for i, _ in pieces]).decode()


def test_a_word_is_learned_as_often_as_it_stands_there() -> None:
    tokenizer = train_tokenizer("wordpiece", ["_ _ _ \u0301 \u0301 ab ab, ab a...."], 100)
    pieces = {tokenizer.piece(i) for i in range(tokenizer.vocab_size)}
    assert pieces == {"[UNK]", " ", ",", ".", "_", "\u0301", "a", "b", "##b", "ab", "<|endoftext|>"}


def greedy(word: str, vocab: set[str]) -> list[str]:
    """Longest match from the left, as the definition says it."""
    pieces, start = [], 0
    while start < len(word):
        fits = [end for end in range(len(word), start, -1) if ("##" if start else "") + word[start:end] in vocab]
        if not fits:
            return ["[UNK]"]
        pieces.append(("##" if start else "") + word[start : fits[0]])
        start = fits[0]
    return pieces


@pytest.mark.lecture("L2-47")
@given(word=st.text("abc", min_size=1, max_size=10), drawn=st.sets(st.text("abc", min_size=1, max_size=4)))
def test_pieces_are_the_longest_that_fit(word: str, drawn: set[str]) -> None:
    vocab = ["[UNK]", *sorted(drawn), *sorted("##" + piece for piece in drawn if "c" not in piece)]
    tokenizer = WordPiece.of(vocab)
    assert [piece for _, piece in tokenizer.pieces(word)] == greedy(word, set(vocab))


def test_a_vocabulary_without_unknown_says_so() -> None:
    with pytest.raises(HeddleError, match="it has no unknown token") as error:
        WordPiece.of(["un", "##do"]).encode("redo")
    assert "\n" not in str(error.value)


# Unigram


@pytest.mark.parametrize(
    "text", ["▁It▁is", "▁", "<0x41>", "<0xE2><0x96><0x81>", "<unk>", " It", "  It  ", "\n\n It\n", ""]
)
def test_text_that_looks_like_the_files_own_marks_comes_back(text: str) -> None:
    ids = UNIGRAM.encode(text)
    assert UNIGRAM.decode(ids) == text
    assert UNIGRAM.encode(text, allow_special=True) == ids
    assert text == "" or "<0x" not in text or not set(ids) & set(range(256))


@pytest.mark.lecture("D-39")
@given(text=st.text())
def test_ids_of_a_unigram_are_those_of_tokenizers(text: str, library: dict[str, tokenizers.Tokenizer]) -> None:
    sample = f"It is {text} raining".replace("▁", "_")
    ids = UNIGRAM.encode(sample)
    assert ids == library["unigram"].encode(sample).ids
    assert library["unigram"].decode(ids) == sample


def test_a_unigram_learns_words_with_their_space() -> None:
    assert isinstance(UNIGRAM, Unigram)
    assert len(UNIGRAM.encode("It is raining")) < len("It is raining") / 2
    assert UNIGRAM.encode("\x00é")[0] == 0
    assert [UNIGRAM.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


# Side by side


@pytest.mark.lecture("L2-46", "L2-45")
def test_all_kinds_side_by_side() -> None:
    cuts = {cut.kind: cut for cut in compare("It is raining.", lambda: [RAIN], 400)}
    assert list(cuts) == list(KINDS)
    assert all(cut.exact and not cut.unknown and cut.error is None for cut in cuts.values())
    assert len(cuts["characters"].ids) == len(cuts["bytes"].ids) == 14
    assert len(cuts["words"].ids) == 4
    for kind in ("bpe", "wordpiece", "unigram"):
        assert len(cuts["words"].ids) <= len(cuts[kind].ids) < 14
    assert cuts["bytes"].vocab_size == 256
    assert all(cut.vocab_size is not None and cut.vocab_size <= 400 for cut in cuts.values())


@pytest.mark.lecture("L2-46")
def test_a_text_of_strange_words_is_compared_all_the_same() -> None:
    cuts = {cut.kind: cut for cut in compare("It Zis", lambda: [RAIN], 400)}
    assert cuts["characters"].error is not None
    assert "'Z' at position 3" in cuts["characters"].error
    assert (cuts["words"].unknown, cuts["words"].exact) == (1, False)
    assert (cuts["bpe"].unknown, cuts["bpe"].exact) == (0, True)
    with pytest.raises(HeddleError, match="unknown kind"):
        compare("It", lambda: [RAIN], 400, ["morse"])
