"""Streamed text is the text, up to a stop text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import HeddleError
from heddle.text import TextStream, Tokenizer, train_tokenizer

BYTES = train_tokenizer("bytes", [])
BPE = train_tokenizer("bpe", ["日本語 日本語 😀😀 ééé naïve naïve"] * 4, 300)


TEXT = "日本語 日本語 😀😀 ééé naïve naïve, is it? it is. " * 4
STREAMED = {
    "bytes": BYTES,
    "bpe": BPE,
    "words": train_tokenizer("words", [TEXT]),
    "wordpiece": train_tokenizer("wordpiece", [TEXT], 60),
    "unigram": train_tokenizer("unigram", [TEXT], 300),
}

# Tokens span characters, and parts of them.
MERGED: Tokenizer = train_tokenizer("bpe", ["ab abc bcab cba 🧵🪡🧵 é " * 20], vocab_size=275)
(AB,) = [id for id in range(MERGED.vocab_size) if MERGED.token_bytes(id) == b"ab"]


@pytest.mark.parametrize("kind", STREAMED)
@given(data=st.data())
def test_what_is_pushed_adds_up_to_decode(kind: str, data: st.DataObject) -> None:
    chosen = STREAMED[kind]
    ids = data.draw(st.lists(st.integers(0, chosen.vocab_size - 1)))
    stream = TextStream(chosen)
    assert "".join([*map(stream.push, ids), stream.flush()]) == chosen.decode(ids)


# Half-way bytes of real characters, and every kind of byte that breaks them.
@given(st.lists(st.sampled_from([*"é日😀".encode(), 0x80, 0xED, 0xF4, 0xFF, 0x61])))
def test_broken_characters_are_replaced_as_decode_does(ids: list[int]) -> None:
    stream = TextStream(BYTES)
    assert "".join([*map(stream.push, ids), stream.flush()]) == bytes(ids).decode(errors="replace")


@given(st.text())
def test_a_character_appears_whole_and_at_once(text: str) -> None:
    stream = TextStream(BYTES)
    shown = [stream.push(i) for i in text.encode()]
    assert [part for part in shown if part] == list(text)
    assert stream.flush() == ""


@given(st.text())
def test_no_character_of_a_unigram_is_broken(text: str) -> None:
    stream = TextStream(STREAMED["unigram"])
    shown = [stream.push(i) for i in STREAMED["unigram"].encode(text)]
    assert "".join(shown) == text
    assert stream.flush() == ""


def test_a_flushed_stream_of_words_begins_without_a_space() -> None:
    words = STREAMED["words"]
    (word,) = words.encode("naïve")
    stream = TextStream(words)
    assert [stream.push(word), stream.push(word), stream.flush(), stream.push(word)] == ["naïve", " naïve", "", "naïve"]


def test_a_flushed_stream_starts_anew() -> None:
    stream = TextStream(BYTES)
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(0x61) + stream.flush() == "a"


def test_emoji_come_whole() -> None:
    stream = TextStream(BYTES)
    ids = BYTES.encode("🧵a🪡")
    assert [stream.push(id) for id in ids] == ["", "", "", "🧵", "a", "", "", "", "🪡"]
    assert stream.push(ids[0]) + stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(HeddleError, match="id 257"):
        TextStream(BYTES).push(257)


def single(byte: int) -> int:
    """The id of one byte."""
    return next(id for id in range(MERGED.vocab_size) if MERGED.token_bytes(id) == bytes([byte]))


def test_a_stop_text_across_tokens_is_never_shown() -> None:
    stream = TextStream(BYTES, stop=("END", "NO"))
    shown = [stream.push(id) for id in b"one EN ENO"]
    assert shown == ["o", "n", "e", " ", "", "", "EN ", "", "", "E"]
    assert stream.stopped


def test_a_stop_text_inside_a_token_counts() -> None:
    stream = TextStream(MERGED, stop=("b",))
    assert stream.push(AB) == "a"
    assert stream.stopped


def test_of_several_stop_texts_the_first_to_be_complete_counts() -> None:
    stream = TextStream(MERGED, stop=("xab", "a"))
    assert [stream.push(single(ord("x"))), stream.push(AB)] == ["", "x"]


def test_what_was_held_back_comes_in_the_end() -> None:
    stream = TextStream(BYTES, stop=("xyz",))
    assert [stream.push(ord("x")), stream.push(ord("y")), stream.flush()] == ["", "", "xy"]
    assert not stream.stopped


def test_half_a_character_in_the_end_may_be_a_stop_text() -> None:
    stream = TextStream(BYTES, stop=("a\ufffd",))
    assert [stream.push(ord("a")), stream.push(0xF0), stream.flush()] == ["", "", ""]
    assert stream.stopped


def first_complete(text: str, stops: Sequence[str]) -> str:
    """The text read one character after the other, up to the first stop text that is complete."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(
    words=st.lists(st.sampled_from(["a", "b", "c", "ab", "abc", " ab", "🧵", "é"]), max_size=12),
    stops=st.lists(st.text("abc 🧵", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_how_tokens_cut_the_text_changes_nothing(words: list[str], stops: list[str], cuts: list[bool]) -> None:
    ids = []
    for word, whole in zip(words, cuts, strict=False):
        ids += MERGED.encode(word) if whole else [single(byte) for byte in word.encode()]
    stream, shown = TextStream(MERGED, stop=stops), ""
    for id in ids:
        shown += stream.push(id)
        if stream.stopped:
            break
    else:
        shown += stream.flush()
    assert shown == first_complete("".join(words), stops)
