"""Streamed text is the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import HeddleError
from heddle.text import TextStream, train_tokenizer

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


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(HeddleError, match="id 257"):
        TextStream(BYTES).push(257)
