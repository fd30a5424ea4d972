"""Constrained texts: always valid, for every tokenizer, alone or among others, with guesses or without."""

import json
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.config import EngineConfig, SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import Engine, Lookup, complete, generate_text, naive, stream
from heddle.generate.constrain import Guides
from heddle.model import Transformer
from heddle.text import Tokenizer, train_tokenizer
from tests.generate.conftest import Make

WORDS = 'the warp is held, the weft is thrown; 12 yarns and 7 é looms: {"a": [1, 2], "b": "x y"} '
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "yarn": {"enum": ["warp", "wéft"]},
        "fine": {"type": "boolean"},
    },
    "required": ["count", "yarn", "fine"],
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
    for seed in range(3):
        hot: dict[str, Any] = {"max_tokens": 120, "seed": seed, "temperature": (0.0, 1.0, 3.0)[seed % 3]}
        assert generate_text(model, tokenizer, "the", choice=["warp", "weft", "a loom"], **hot) in (
            "warp",
            "weft",
            "a loom",
        )
        assert re.fullmatch("[a-c]{2,4}x?é", generate_text(model, tokenizer, "the", regex="[a-c]{2,4}x?é", **hot))
        found = json.loads(generate_text(model, tokenizer, "the", json_schema=SCHEMA, **hot))
        assert set(found) == set(SCHEMA["required"])
        assert 0 <= found["count"] <= 99
        assert found["yarn"] in ("warp", "wéft")


def test_a_text_ends_when_nothing_can_follow(make: Make) -> None:
    tokenizer = train_tokenizer("bytes", [])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    (*_, last) = complete(model, tokenizer, ["a"], SamplingConfig(choice=("warp",), max_tokens=50))
    assert (last.finish, last.tokens) == ("stop", 4)


@pytest.fixture
def alone() -> dict[SamplingConfig, list[int]]:
    """What a text is by itself; equal ones of several examples need be found only once."""
    return {}


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_with_and_without_constraints_do_not_mix(
    make: Make, alone: dict[SamplingConfig, list[int]], data: st.DataObject
) -> None:
    tokenizer = train_tokenizer("bytes", [])
    model, guides = make(vocab_size=tokenizer.vocab_size, context=96).eval(), Guides(tokenizer)
    some = [{}, {"choice": ("warp", "weft")}, {"regex": "(ab|ba){1,9}c"}, {"json_schema": json.dumps(SCHEMA)}]
    proposer = data.draw(st.sampled_from([None, Lookup(count=3, shortest=1)]))
    end = tokenizer.end_of_text
    engine = Engine(model, end, tokenizer.vocab_size, EngineConfig(rows=3), proposer, guides)
    asked: list[Any] = []
    found: dict[int, list[int]] = {}
    for number in range(6):
        sampling = SamplingConfig(max_tokens=50, seed=number, **data.draw(st.sampled_from(some)))
        asked.append(([97, 98, 97, 98], sampling))
        engine.submit(*asked[-1])
    while engine:
        for event in engine.step():
            found.setdefault(event.row, []).append(event.token)
    for row, (prompt, sampling) in enumerate(asked):
        if sampling not in alone:
            alone[sampling] = naive(model, prompt, sampling, end, guide=guides.make(sampling))
        assert found[row] == alone[sampling]


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
        ({"choice": ["é", "è"]}, "choice: no text of this tokenizer meets it"),
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
    tokenizer = train_tokenizer("characters", ["ab {}"])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    with pytest.raises(HeddleError, match="row 0: no token may follow: what is banned and what the text must match"):
        generate_text(model, tokenizer, "a", regex="[ab]c")


def test_a_grammar_that_grows_too_large_ends_its_own_text(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other texts of the same steps go on."""
    tokenizer = train_tokenizer("bytes", [])
    model, guides = make(vocab_size=tokenizer.vocab_size).eval(), Guides(tokenizer)
    engine = Engine(model, tokenizer.end_of_text, tokenizer.vocab_size, guides=guides)
    for regex in ("[ab]{9}", "[cd]{9}"):
        engine.submit([97], SamplingConfig(regex=regex, max_tokens=20))
    large = engine.waiting[0].text.guide
    engine.step()

    class Large:
        """What llguidance's matcher says after it has met a limit."""

        def __getattr__(self, name: str) -> Any:
            found = {
                "is_error": True,
                "is_stopped": True,
                "get_error": "step exceeds the lexer's limit",
                "rollback": None,
            }
            return lambda *_: found.get(name, 1)

    monkeypatch.setattr(large, "matcher", Large())
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
