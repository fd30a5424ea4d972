"""Tokens of an answer: their texts join to the answer's, wherever words and characters are cut."""

from collections.abc import Iterator
from typing import Any, get_args

import httpx2
import pytest

from heddle.config.serve import ServeConfig
from heddle.generate.logprobs import Event, Finish
from heddle.model import build
from heddle.serve import ServedRun
from heddle.serve.answers import Alternative, ByteDecoder, Choice, DecodedToken, completion_logprobs, decode, usage
from heddle.text import Tokenizer, train_tokenizer
from tests.serve.conftest import DECODER, ENGINE, LOUD, TOKENIZER, Server

WORDS = "the warp is held and the weft is thrown , said the loom"
KINDS = {"words": None, "wordpiece": 80, "unigram": 500, "bpe": 300, "bytes": None}


def tokenizer_of(kind: str) -> Tokenizer:
    return train_tokenizer(kind, [WORDS] * 20, KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_tokens_join_to_the_text(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the weft is held")
    decoder = ByteDecoder(tokenizer)
    pushed = [decoder.push(id) for id in ids]
    text = tokenizer.decode(ids)
    assert b"".join(each.raw for each in pushed).decode() == text == decode(tokenizer, ids)
    assert [text[each.offset :].encode().startswith(each.raw) for each in pushed] == [True] * len(pushed)


def test_half_a_character_has_its_own_byte_and_its_characters_place() -> None:
    decoder = ByteDecoder(TOKENIZER, start=3)
    ids = [*TOKENIZER.encode("éa"), *TOKENIZER.encode("é")[:1], *TOKENIZER.encode("b")]
    pushed = [decoder.push(id) for id in ids]
    assert [each.raw for each in pushed] == [b"\xc3", b"\xa9", b"a", b"\xc3", b"b"]
    assert TOKENIZER.decode(ids) == "éa\ufffdb"
    assert [each.offset for each in pushed] == [3, 3, 4, 5, 6]


def test_ids_before_a_text_are_silent_once() -> None:
    decoder = ByteDecoder(TOKENIZER, bos_prefix=(3, 4))
    assert [decoder.push(id).raw for id in (3, 4, 97, 3)] == [b"", b"", b"a", b"\x03"]
    again = ByteDecoder(TOKENIZER, bos_prefix=(3,))
    assert [again.push(id).raw for id in (3, 3)] == [b"", b"\x03"]


def test_every_alternative_has_a_name_of_its_own() -> None:
    """Of a tokenizer of bytes, 128 alternatives are parts of characters, which as text would all be U+FFFD."""
    top = tuple((id, -0.1 * number) for number, id in enumerate([*range(190, 200), *range(97, 107)]))
    decoder = ByteDecoder(TOKENIZER, previous=97)
    tokens = [decoder.push(id, logprob, top) for id, logprob in ((190, 0.0), (191, -0.1), (98, -1.1))]
    table = completion_logprobs(tokens, 20)
    assert table is not None
    assert [len(each) for each in table["top_logprobs"]] == [20, 20, 20]
    assert table["tokens"] == ["bytes:\\xbe", "bytes:\\xbf", "b"]
    assert [each[name] for each, name in zip(table["top_logprobs"], table["tokens"], strict=True)] == [0.0, -0.1, -1.1]


def test_ids_that_spell_the_same_are_told_apart() -> None:
    tokenizer = tokenizer_of("bpe").with_special(["<|a|>", "<|b|>"])  # type: ignore[attr-defined]
    alike = [id for id in range(tokenizer.vocab_size) if not tokenizer.token_bytes(id)]
    decoder = ByteDecoder(tokenizer, previous=97)
    top = tuple((id, -0.1 * id) for id in [*alike, 98, 99])
    (token,) = [decoder.push(98, -9.8, top)]
    assert len(set(token.names().values())) == len(top)
    assert token.names()[98] == tokenizer.token_bytes(98).decode()


def test_two_ids_without_text_have_their_numbers() -> None:
    token = DecodedToken(5, b"", -1.0, (Alternative(6, b"", -2.0), Alternative(7, b"a", -3.0)), 0)
    assert token.names() == {5: "token_id:5", 6: "token_id:6", 7: "a"}


def test_every_way_to_end_has_openais_word() -> None:
    words = {}
    for finish in get_args(Finish):
        if finish == "broken":  # an error instead
            continue
        choice = Choice(0, [97], ByteDecoder(TOKENIZER, previous=97))
        choice.add(Event(0, 98, -0.5, text="b"))
        assert choice.finish is None
        choice.add(Event(0, 99, -0.5, finish, text="c"))
        words[finish] = choice.finish
        assert (choice.text, len(choice.tokens)) == ("bc", 2)
    assert words == {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


def test_what_is_used_counts_sources_and_every_text() -> None:
    choices = [Choice(number, [], ByteDecoder(TOKENIZER)) for number in range(2)]
    for choice in choices:
        choice.add(Event(0, 97, -0.5, text="a"))
    choices[1].add(Event(1, 98, -0.5, "length", text="b"))
    read = usage([([1, 2], None), ([], [3, 4, 5])], choices)
    assert read == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@pytest.mark.parametrize(("count", "tables"), [(None, ()), (0, None), (1, [{"b": -0.5}])])
def test_no_alternatives_are_no_tables(count: int | None, tables: Any) -> None:
    token = DecodedToken(97, b"a", -0.7, (Alternative(98, b"b", -0.5),) if count else (), 0)
    logprobs = completion_logprobs([token], count)
    assert (logprobs is None) == (count is None)
    if logprobs is not None:
        assert (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]) == (["a"], [-0.7], tables)


def test_lm_eval_reads_from_names_whether_a_text_is_the_most_probable() -> None:
    completions = pytest.importorskip("lm_eval.models.openai_completions").LocalCompletionsAPI
    decoder = ByteDecoder(TOKENIZER)
    # Two bytes of characters; the second one is not the most probable, but another part of a character is.
    drawn = [
        (97, 0.0, ()),
        (195, -0.5, ((195, -0.5),)),
        (169, -2.0, ((170, -0.2),)),
        (97, -9.0, ()),
    ]
    for rows, greedy in (
        (drawn, False),
        ([drawn[0], drawn[1], (169, -0.2, ((169, -0.2),)), drawn[3]], True),
    ):
        decoder = ByteDecoder(TOKENIZER)
        first, *others = [decoder.push(*each) for each in rows]
        choices = [{"index": 0, "logprobs": completion_logprobs(others, 1, first)}]
        ((total, exact),) = completions.parse_logprobs({"choices": choices}, tokens=[[97, 195, 169]], ctxlens=[1])
        assert (total, exact) == (sum(logprob for _, logprob, _ in rows[1:3]), greedy)


@pytest.fixture(scope="module", params=["words", "bpe"])
def words(request: pytest.FixtureRequest) -> Iterator[tuple[httpx2.Client, Tokenizer]]:
    tokenizer = tokenizer_of(request.param)
    model = build(DECODER.override({**LOUD, "vocab_size": tokenizer.vocab_size}), seed=1).eval()
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("words", model, tokenizer)])
    try:
        with httpx2.Client(base_url=server.url, timeout=30) as http:
            yield http, tokenizer
    finally:
        server.stop()


@pytest.mark.parametrize("echo", [False, True])
def test_tokens_and_their_places_are_those_of_the_text(words: tuple[httpx2.Client, Tokenizer], echo: bool) -> None:
    http, _ = words
    request: dict[str, Any] = {
        "model": "words",
        "prompt": "the weft is",
        "max_tokens": 9,
        "temperature": 0,
        "logprobs": 3,
        "echo": echo,
    }
    (choice,) = http.post("/v1/completions", json=request).json()["choices"]
    logprobs, text = choice["logprobs"], choice["text"]
    whole = [token for token in logprobs["tokens"] if not token.startswith("bytes:")]  # others are parts of characters
    if choice["finish_reason"] == "length" and len(whole) == len(logprobs["tokens"]):
        assert "".join(whole) == text
    places = [each for each in zip(logprobs["tokens"], logprobs["text_offset"], strict=True) if each[0] in whole]
    assert len(places) > 2
    assert all(text[place:].startswith(token) for token, place in places if place < len(text))
    with http.stream("POST", "/v1/completions", json={**request, "stream": True}) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line and "[DONE]" not in line]
    parts = [httpx2.Response(200, text=line).json()["choices"][0] for line in lines]
    assert "".join(part["text"] for part in parts) == text
    for key in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        assert [each for part in parts for each in part["logprobs"][key]] == logprobs[key]
