"""Constrained texts: always valid, for every tokenizer, alone or among others, with guesses or without."""

import json
import random
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import EngineConfig, SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import Engine, PromptLookup, complete, generate_text, naive, stream
from heddle.generate.constrain import Guides
from heddle.model import Transformer
from heddle.text import Tokenizer, train_tokenizer
from heddle.text.base import Kind
from tests.generate.conftest import Make
from tests.running import unchecked

WORDS = 'the warp is held, the weft is thrown; 12 yarns and 7 é looms: {"a": [1, 2], "b": "x y"} '
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "yarn": {"enum": ["warp", "wéft"]},
    },
    "required": ["count", "yarn"],
    "additionalProperties": False,
}
TOKENIZERS = {
    kind: (kind, size) for kind, size in (("bytes", None), ("bpe", 300), ("characters", None), ("unigram", 500))
}


@pytest.fixture(params=list(TOKENIZERS))
def both(request: pytest.FixtureRequest, make: Make) -> tuple[Transformer, Tokenizer]:
    kind, size = TOKENIZERS[request.param]
    letters = WORDS + 'abcdefghijklmnopqrstuvwxyzé0123456789{}":, []'
    tokenizer = train_tokenizer(kind, [letters] * 20, *(() if size is None else (size,)))  # type: ignore[arg-type]
    return make(vocab_size=tokenizer.vocab_size, context=128).eval(), tokenizer


def test_every_text_is_valid(both: tuple[Transformer, Tokenizer]) -> None:
    """However the model would rather go on, and however it is sampled."""
    model, tokenizer = both
    for seed, temperature in enumerate((0.0, 3.0)):
        hot: dict[str, Any] = {"max_tokens": 120, "seed": seed, "temperature": temperature}
        assert generate_text(model, tokenizer, "the", choice=["warp", "weft", "a loom"], **hot) in (
            "warp",
            "weft",
            "a loom",
        )
        assert re.fullmatch("[a-c]{2,4}x?é", generate_text(model, tokenizer, "the", regex="[a-c]{2,4}x?é", **hot))
        data = json.loads(generate_text(model, tokenizer, "the", json_schema=SCHEMA, **hot))
        assert set(data) == set(SCHEMA["required"])
        assert 0 <= data["count"] <= 99
        assert data["yarn"] in ("warp", "wéft")


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
def test_blanks_that_no_token_spells_count(make: Make, kind: Kind) -> None:
    """Tokens of words have a blank between them, and after the prompt's last word, too."""
    tokenizer = train_tokenizer(kind, ["the warp weft , loom x " * 9], 60)
    model = make(vocab_size=tokenizer.vocab_size, context=64).eval()
    assert tokenizer.joints[0], "the test is of tokenizers that leave out blanks"
    for seed in range(2):
        hot: dict[str, Any] = {"max_tokens": 40, "seed": seed, "temperature": 3.0}
        for regex in (" ?warp( weft)+,? (the loom|x)", "( loom)( weft)? ?,"):
            for prompt in ("the", ","):
                text = generate_text(model, tokenizer, prompt, regex=regex, **hot)
                assert re.fullmatch(regex, text), (regex, prompt, text)
        assert generate_text(model, tokenizer, "the", choice=[" warp weft", " loom"], **hot) in (" warp weft", " loom")
        assert generate_text(model, tokenizer, ",", choice=["warp weft", "loom"], **hot) in ("warp weft", "loom")
        for prompt, choice in (("the", "loom"), (",", "warpweft"), ("the", " warpweft")):
            if kind == "words":  # two words always have a blank between them, whoever asked before
                with pytest.raises(HeddleError, match="choice: this tokenizer has no tokens that spell"):
                    generate_text(model, tokenizer, prompt, choice=[choice], **hot)


def test_a_blank_that_is_missing_is_named(make: Make) -> None:
    tokenizer = train_tokenizer("words", ["the warp weft"])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    for constraint in ({"choice": ["warp"]}, {"regex": "warp|weft"}):
        with pytest.raises(HeddleError, match="after a word, a text begins with a space: put one before yours"):
            generate_text(model, tokenizer, "the", **constraint)


def test_a_word_for_nothing_is_a_text_like_others(make: Make) -> None:
    assert SamplingConfig.of({"regex": "none"}).regex == "none"
    tokenizer = train_tokenizer("bytes", [])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    assert generate_text(model, tokenizer, "a", regex="null", max_tokens=9) == "null"
    with pytest.raises(HeddleError, match="json_schema: Expecting object schema"):
        generate_text(model, tokenizer, "a", json_schema="null")
    with pytest.raises(HeddleError, match="nested too deeply"):
        SamplingConfig.of({"json_schema": nested(100_000)})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


def test_a_constraint_is_read_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each of its texts goes its own way."""
    import llguidance

    read: list[str] = []
    original = llguidance.LLMatcher.grammar_from_regex
    monkeypatch.setattr(llguidance.LLMatcher, "grammar_from_regex", lambda regex: read.append(regex) or original(regex))
    guides = Guides(train_tokenizer("bytes", []))
    first, second = (guides.make(SamplingConfig(regex="ab|cd", seed=seed)) for seed in range(2))
    assert first is not None
    assert second is not None
    assert read == ["ab|cd"]
    assert np.flatnonzero(first.allowed([97])[0]).tolist() == [98]
    assert np.flatnonzero(second.allowed([])[0]).tolist() == [97, 99]
    assert np.flatnonzero(second.allowed([99])[0]).tolist() == [100]


def test_a_text_ends_when_nothing_can_follow(make: Make) -> None:
    tokenizer = train_tokenizer("bytes", [])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    (*_, last) = complete(model, tokenizer, ["a"], SamplingConfig(choice=("warp",), max_tokens=50))
    assert (last.finish, last.tokens) == ("stop", 4)


def test_rows_with_and_without_constraints_do_not_mix(make: Make) -> None:
    """Two texts of every kind, three at a time, in an order of chance: each is what it is alone, with guesses, too."""
    tokenizer = train_tokenizer("bytes", [])
    model, guides = make(vocab_size=tokenizer.vocab_size, context=96).eval(), Guides(tokenizer)
    some: list[Any] = [
        {},
        {"choice": ("warp", "weft")},
        {"regex": "(ab|ba){1,9}c"},
        {"json_schema": json.dumps(SCHEMA)},
    ]
    samplings = [SamplingConfig(max_tokens=30, seed=seed, **each) for seed, each in enumerate(some * 2)]
    prompt, end, chance = [97, 98, 97, 98], tokenizer.end_of_text, random.Random(0)
    with unchecked():
        alone = {each: naive(model, prompt, each, end, guide=guides.make(each)) for each in samplings}
    for draft_source in (None, PromptLookup(count=3, shortest=1)):
        chance.shuffle(samplings)
        engine = Engine(model, end, tokenizer.vocab_size, EngineConfig(rows=3), draft_source, guides)
        texts: dict[int, list[int]] = {engine.submit(prompt, sampling): [] for sampling in samplings}
        while engine:
            for event in engine.step():
                texts[event.row].append(event.token)
        assert [texts[row] for row in range(len(samplings))] == [alone[each] for each in samplings]


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "(a"}, "regex: .*unclosed group"),
        ({"json_schema": '{"type": "nothing"}'}, "json_schema: Invalid type: nothing"),
        ({"json_schema": "nothing"}, "json_schema: Expecting value"),
        ({"json_schema": '{"type": "integer", "minimum": 5, "maximum": 3}'}, "Unsatisfiable"),
        ({"regex": ""}, "regex: only an empty text meets it"),
        ({"regex": "a{0}"}, "regex: only an empty text meets it"),
        ({"json_schema": ""}, "json_schema: Expecting value"),
        ({"choice": ["é"]}, "choice: it needs 'é', which no token of this tokenizer has"),
        ({"choice": ["b", "aé"]}, "choice: this tokenizer has no tokens that spell 'aé' here"),
        ({"regex": "é"}, "regex: it needs 'é', which no token of this tokenizer has"),
        ({"regex": "[ab](c|d)"}, "regex: no text of this tokenizer meets it"),
        ({"regex": "[éè]"}, "regex: no text of this tokenizer meets it"),
        ({"json_schema": "[" * 5000}, "json_schema: "),
        ({"regex": '"[a-z]+"'}, "regex: it needs '\"', which no token of this tokenizer has"),
        ({"json_schema": {"type": "array"}}, r"json_schema: it needs '\[', which no token of this tokenizer has"),
        ({"choice": ["a"], "regex": "a"}, "exclude each other"),
        ({"choice": [""]}, "choice contains an empty text"),
    ],
)
def test_what_cannot_be_met_is_refused(make: Make, constraint: dict[str, Any], message: str) -> None:
    tokenizer = train_tokenizer("characters", ["ab {}"])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    with pytest.raises(HeddleError, match=message):
        generate_text(model, tokenizer, "a", **constraint)


def test_bytes_that_must_come_may_be_the_beginning_of_a_longer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tokenizer in which a quotation mark is never a token of its own."""
    tokenizer = train_tokenizer("characters", ["abcd"])
    tokens = dict(zip(tokenizer.encode("abcd"), (b'"a', b"b", b'"b', b'"c'), strict=True))
    monkeypatch.setattr(type(tokenizer), "token_bytes", lambda self, id: tokens.get(id, b""))
    guide = Guides(tokenizer).make(SamplingConfig(regex='"a?b'))
    assert guide is not None
    started, ended, whole, _ = tokens
    assert np.flatnonzero(guide.allowed([])[0]).tolist() == sorted([started, whole])
    assert np.flatnonzero(guide.allowed([started])[0]).tolist() == [ended]
    assert guide.complete([started, ended])
    assert guide.complete([whole])


def test_a_text_breaks_where_no_token_spells_what_must_follow(make: Make) -> None:
    tokenizer = train_tokenizer("characters", ['ab {}"'])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    with pytest.raises(HeddleError, match="row 0: no token may follow: bans and constraints exclude every token"):
        generate_text(model, tokenizer, "a", json_schema={"enum": ["ac", "bc"]})


def test_an_expression_is_of_what_the_tokenizer_spells(make: Make) -> None:
    """No way leads to where only other characters could follow."""
    tokenizer = train_tokenizer("characters", ["ab/\\\n-]^"])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    for seed in range(4):
        hot: dict[str, Any] = {"max_tokens": 20, "seed": seed, "temperature": 3.0}
        for regex in ("[ab](cd|b)", "(a|b/|/c)\\/[^a]", "a\n(b|\\n)|\\\\/x", "(ü|a)-\\]{2}", ".{3}", "(?s:.){3}"):
            assert re.fullmatch(regex, generate_text(model, tokenizer, "a", regex=regex, **hot)), regex


def test_a_guess_that_leads_nowhere_can_be_taken_back() -> None:
    tokenizer = train_tokenizer("characters", ['ab"'])
    mark, a, b = tokenizer.encode('"ab')
    guide = Guides(tokenizer).make(SamplingConfig(json_schema='{"enum": ["ac", "bb", "bab"]}'))
    assert guide is not None
    assert not guide.allowed([mark, a])[0].any()
    assert np.flatnonzero(guide.allowed([mark])[0]).tolist() == sorted([a, b])
    assert np.flatnonzero(guide.allowed([mark, b])[0]).tolist() == sorted([a, b])
    assert guide.complete([mark, b, b, mark])


def test_a_grammar_that_grows_too_large_ends_its_own_text(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other texts of the same steps go on."""
    tokenizer = train_tokenizer("bytes", [])
    model, guides = make(vocab_size=tokenizer.vocab_size).eval(), Guides(tokenizer)
    engine = Engine(model, tokenizer.end_of_text, tokenizer.vocab_size, guides=guides)
    for regex in ("[ab]{9}", "[cd]{9}"):
        engine.submit([97], SamplingConfig(regex=regex, max_tokens=20))
    large = engine.waiting[0].guide
    engine.step()

    class Large:
        """What llguidance's matcher says after it has met a limit."""

        def __getattr__(self, name: str) -> Any:
            described = {
                "is_error": True,
                "is_stopped": True,
                "get_error": "step exceeds the lexer's limit",
                "rollback": None,
                "deep_copy": self,
            }
            return lambda *_: described.get(name, 1)

    for place in ("start", "matcher"):
        monkeypatch.setattr(large, place, Large())
    events = [event for _ in range(12) if engine for event in engine.step()]
    (broken,) = (event for event in events if event.error)
    assert broken.row == 0
    assert broken.error == "no token may follow: step exceeds the lexer's limit"
    assert bytes(event.token for event in events if event.row == 1).decode().strip("cd") == ""
    assert events[-1].finish == "stop"


def test_without_llguidance_the_way_to_it_is_said(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = train_tokenizer("bytes", [])
    with pytest.raises(HeddleError, match=r"pip install 'heddle-lm\[serve\]'"):
        generate_text(make(vocab_size=tokenizer.vocab_size), tokenizer, "a", choice=["a"])


def test_ids_alone_cannot_be_constrained(make: Make) -> None:
    with pytest.raises(HeddleError, match="needs the tokenizer"):
        list(stream(make(), [1], SamplingConfig(regex="a")))
    assert torch.is_grad_enabled()
