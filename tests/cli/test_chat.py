"""`heddle chat`: messages in, answers out, the conversation that they make."""

import io
import json
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from heddle.config import sized
from heddle.generate import reply
from heddle.generate.chat import plain_template
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights import load, save

from .conftest import Heddle, Result

Say = Callable[..., Result]


@pytest.fixture
def say(heddle: Heddle, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Type lines into a conversation: `say("talk", "hello", "/reset")`."""

    def call(run: str, *lines: str, options: tuple[str, ...] = ("--max-tokens", "6", "--temperature", "0")) -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return heddle("chat", run, *options)

    return call


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A run with a chat template, whose answers are never a tie."""
    tokenizer = train_tokenizer("bytes", [], special=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"))
    loud = {"initial": {"std": 0.3, "scale_residual": False}, "chat": {}}
    config = sized(1, vocab_size=tokenizer.vocab_size, context=96, dim=32).override(loud)
    save(build(config, seed=2), tmp_path / "runs" / "talk", tokenizer)
    return tmp_path / "runs" / "talk"


def test_answers_are_those_of_reply_and_the_conversation_is_kept(say: Say, talk: Path) -> None:
    result = say(
        "talk", "warp", "", "we \\", "ft", "/save talk.json", options=("--max-tokens", "6", "--system", "Yarn.")
    )
    assert result.code == 0
    messages = json.loads(Path("talk.json").read_text())["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [each["content"] for each in messages][::2] == ["Yarn.", messages[2]["content"], messages[4]["content"]]
    assert messages[3]["content"] == "we \nft"
    model, tokenizer = load(talk)
    assert tokenizer is not None
    first = reply(model, tokenizer, messages[:2], max_tokens=6, temperature=0.8)
    assert messages[2]["content"] == first.lstrip()
    second = reply(model, tokenizer, messages[:4], max_tokens=6, temperature=0.8)
    assert messages[4]["content"] == second.lstrip()


def test_commands(say: Say, talk: Path) -> None:
    once = say("talk", "warp").out
    assert say("talk", "weft", "/reset", "warp").out.endswith(once)
    assert say("talk", "weft", "/undo", "warp").out.endswith(once)
    assert say("talk", "weft", "/system", "warp").out.endswith(once)
    result = say("talk", "/nothing", "/help", "/save", "/save runs")
    assert "unknown command /nothing" in result.err
    assert "/save FILE" in result.err
    assert "runs already exists" in result.err
    assert "/undo" in result.out
    assert say("talk", "warp", "/quit", "/help").out == once


def test_a_model_without_a_template_sees_a_script_and_says_so(say: Say, run_a: Path) -> None:
    result = say("a", "hi", options=("--max-tokens", "2"))
    assert result.code == 0
    assert "has no chat template: using a plain transcript" in result.err
    assert "shorten it" in result.err, "its context is 16 bytes"


def test_old_exchanges_are_forgotten(say: Say, talk: Path) -> None:
    result = say("talk", "a" * 30, "b" * 30, "c" * 30, "d" * 200, "e", options=("--max-tokens", "20"))
    assert "the context is full: dropped 1 exchange" in result.err
    assert "does not fit into the model's context of 96 tokens" in result.err
    assert result.code == 0


def test_a_message_that_does_not_fit_costs_no_conversation(say: Say, talk: Path) -> None:
    result = say("talk", "warp", "weft", "d" * 200, "/save talk.json", options=("--max-tokens", "4"))
    assert "the message does not fit into the model's context of 96 tokens" in result.err
    contents = [
        each["content"] for each in json.loads(Path("talk.json").read_text())["messages"] if each["role"] == "user"
    ]
    assert contents == ["warp", "weft"]
    result = say("talk", "warp", options=("--system", "d" * 200))
    assert "the system prompt and the message do not fit" in result.err


def test_an_answer_that_is_cut_off_says_so(say: Say, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for finish, note in (("length", "--max-tokens reached"), ("context", "the context is full"), ("end", "")):

        def cut(*args: Any, finish: str = finish) -> Generator[str, None, str]:
            yield "half"
            return finish

        monkeypatch.setattr(import_module("heddle.generate.chat"), "reply_pieces", cut)
        result = say("talk", "warp")
        assert result.out == "half\n"
        assert note in result.err
        assert ("cut off" in result.err) == bool(note)


def test_no_answer_is_remembered_where_none_was_begun(say: Say, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any) -> Iterator[str]:
        raise KeyboardInterrupt
        yield ""

    monkeypatch.setattr(import_module("heddle.generate.chat"), "reply_pieces", stopped)
    say("talk", "warp", "/save talk.json")
    assert json.loads(Path("talk.json").read_text())["messages"] == []


def test_the_plain_script_begins_as_texts_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a published tokenizer puts before them, if the model was imported."""
    tokenizer = train_tokenizer("bytes", [], special=("<s>",))
    model = build(sized(1, vocab_size=tokenizer.vocab_size, context=96, dim=32))
    talk = [{"role": "user", "content": "warp"}]
    plain = plain_template(model, tokenizer).render(talk)
    monkeypatch.setattr(import_module("heddle.generate.chat"), "bos_prefix", lambda *args: (tokenizer.special["<s>"],))
    assert plain_template(model, tokenizer).render(talk) == [tokenizer.special["<s>"], *plain]


def test_ctrl_c_stops_the_answer_and_not_the_program(say: Say, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any) -> Iterator[str]:
        yield " half"
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("heddle.generate.chat"), "reply_pieces", stopped)
    result = say("talk", "warp", "/save talk.json")
    assert result.code == 0
    assert result.out == "half [stopped]\n"
    assert json.loads(Path("talk.json").read_text())["messages"][-1] == {"role": "assistant", "content": "half"}


def test_what_cannot_chat(heddle: Heddle, run_a: Path) -> None:
    for words, message in ((["nowhere"], "no run"), (["a", "--temperature", "-1"], "temperature = -1")):
        result = heddle("chat", *words)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert message in result.err


def test_an_answer_that_does_not_fit_into_memory(say: Say, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and the conversation goes on without the message."""
    engine = import_module("heddle.generate.engine")
    feed, calls = engine.feed, list[int]()

    def full(*words: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) <= 2:
            raise MemoryError
        return feed(*words, **more)

    expected = say("talk", "warp").out
    monkeypatch.setattr(engine, "feed", full)
    result = say("talk", "weft", "heddle", "warp")
    assert (result.code, result.out) == (0, expected)
    assert result.err.count("heddle: out of memory with 1 text of up to ") == 2
