"""Texts without blanks: what learns and what encodes cut them alike, as whoever reads the file does, and no piece is huge."""

import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from heddle.text import load_tokenizer, train_tokenizer
from heddle.text.bpe import BPE
from heddle.text.file import read_content, write_content
from heddle.text.max_piece_length import BLANK, BOUND, LONGEST, max_piece_length, stretches
from heddle.text.unigram import UNBOUNDED, Unigram

DRAW = random.Random(0)
LETTERS = "".join(DRAW.choices("ACGT", k=20_000))


def test_blanks_are_those_of_tokenizers() -> None:
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    split = pre_tokenizers.Split(tokenizers.Regex(r"\s"), "removed", invert=True)
    library = "".join(piece for piece, _ in split.pre_tokenize_str(everything))
    expanded = [chr(code) for code in range(0x2000, 0x200B)] + list("\t\n\x0b\x0c\r")
    assert sorted(set(library)) == sorted({*BLANK, *expanded} - {"-"})


RUNS = st.lists(
    st.tuples(st.sampled_from([*"aé日 \n\x1c\u3000.1"]), st.sampled_from([1, 2, 100, 255, 256, 257, 600])), max_size=8
)


@settings(max_examples=200, deadline=None)
@given(runs=RUNS)
def test_stretches_are_cut_as_tokenizers_cuts_them(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * count for character, count in runs)
    assert stretches(text) == [piece for piece, _ in max_piece_length().pre_tokenize_str(text)]


BOUNDED = train_tokenizer("bpe", [LETTERS, "a" * 3000, "some words and     blanks\n\n" * 40], 600)


@settings(max_examples=100, deadline=None)
@given(runs=RUNS)
def test_ids_are_those_of_whoever_reads_the_file(runs: list[tuple[str, int]], library: tokenizers.Tokenizer) -> None:
    text = "".join(character * count for character, count in runs)
    ids = BOUNDED.encode(text)
    assert ids == library.encode(text).ids
    assert BOUNDED.decode(ids) == text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    place = tmp_path_factory.mktemp("bound")
    BOUNDED.save(place)
    loaded = load_tokenizer(place)
    assert isinstance(loaded, BPE)
    assert loaded._fast is not None  # the bound does not cost the fast way
    assert loaded.fingerprint() == BOUNDED.fingerprint()
    return tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))


def test_no_piece_is_longer_than_the_bound() -> None:
    """A line of one letter would be one piece, doubled with every merge."""
    tokenizer = train_tokenizer("bpe", ["a" * 20_000, "b" * 5000], 400)
    pieces = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size - 1)]
    assert max(map(len, pieces)) <= LONGEST
    text = "a" * 5001
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_reach_the_bound() -> None:
    assert [len(piece) for _, piece in BOUNDED.pieces("a" * (2 * LONGEST + 1))] == [LONGEST, LONGEST, 1]


def rewritten(tokenizer: Any, place: Path, pre_tokenizer: dict[str, Any]) -> Any:
    """The tokenizer as an earlier version wrote it."""
    tokenizer.save(place)
    _, content = read_content(place)
    assert content["pre_tokenizer"]["pretokenizers"][0] == BOUND
    write_content(place, {**content, "pre_tokenizer": pre_tokenizer})
    return load_tokenizer(place)


def test_files_from_before_there_was_a_bound_keep_their_ids(tmp_path: Path) -> None:
    BOUNDED.save(tmp_path)
    steps = read_content(tmp_path)[1]["pre_tokenizer"]["pretokenizers"][1:]
    old = rewritten(BOUNDED, tmp_path / "bpe", {"type": "Sequence", "pretokenizers": steps})
    assert isinstance(old, BPE)
    assert old._fast is not None
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "bpe" / "tokenizer.json"))
    for text in (LETTERS, "a" * 3001, "x" + " " * 700 + "y", "words between words"):
        assert old.encode(text) == library.encode(text).ids
    assert old.encode(LETTERS) != BOUNDED.encode(LETTERS)
    unigram = train_tokenizer("unigram", ["to be or not to be, that is the question " * 5], 400)
    old = rewritten(unigram, tmp_path / "unigram", UNBOUNDED)
    assert isinstance(old, Unigram)
    assert old.encode("to be or not") == unigram.encode("to be or not")


def test_words_too_long_to_be_cut_teach_wordpiece_nothing() -> None:
    words = "the loom and the weft " * 30 + "end"
    with_long = train_tokenizer("wordpiece", [f"{words} {LETTERS}"], 60)
    assert with_long.fingerprint() == train_tokenizer("wordpiece", [words], 60).fingerprint()
    assert [piece for _, piece in with_long.pieces(f"the {LETTERS} loom")][1] == "[UNK]"
