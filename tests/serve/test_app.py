"""What the server refuses, and how it says so: OpenAI's shape, no trace, no path."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import torch
from pydantic import ValidationError

from heddle.config import TransformerConfig
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.predict import classify
from heddle.serve import ServedRun, make_app
from heddle.serve.requests import CompletionRequest
from tests.serve.conftest import BOTH, DECODER, ENGINE, LOUD, TOKENIZER, Server, models

PLAIN = {"model": "plain", "prompt": "a"}
ENDLESS = {"max_tokens": 60, "logit_bias": {"97": 100}}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "a"}]}
BAD: dict[str, tuple[str, Any, int, str]] = {
    "unknown model": ("/v1/completions", {"model": "nope", "prompt": "a"}, 404, "there are: plain, chat"),
    "no model": ("/v1/completions", {"prompt": "a"}, 400, "model: Field required"),
    "unknown field": ("/v1/completions", {**PLAIN, "temprature": 1}, 400, "temprature"),
    "hot": ("/v1/completions", {**PLAIN, "temperature": -1}, 400, "temperature"),
    "no tokens": ("/v1/completions", {**PLAIN, "max_tokens": 0}, 400, "max_tokens = 0"),
    "id too large": ("/v1/completions", {**PLAIN, "prompt": [10**9]}, 400, "ids must be below"),
    "id below zero": ("/v1/completions", {**PLAIN, "prompt": [-1]}, 400, "prompt: Input should be greater than"),
    "a number": (
        "/v1/completions",
        {**PLAIN, "prompt": 7},
        400,
        "prompt: must be a text, a list of texts, a list of ids",
    ),
    "more than may wait": (
        "/v1/completions",
        {**PLAIN, "n": 17},
        400,
        "exceed the queue of 16; ask for fewer",
    ),
    "no prompts": ("/v1/completions", {**PLAIN, "prompt": []}, 400, "empty list"),
    "too long": ("/v1/completions", {**PLAIN, "prompt": "a" * 65}, 400, "context is 64"),
    "bias of an id that is not there": ("/v1/completions", {**PLAIN, "logit_bias": {"9999": 1}}, 400, "the id 9999"),
    "too many": ("/v1/completions", {**PLAIN, "prompt": ["a"] * 20, "n": 128}, 400, "are more than"),
    "nothing left": (
        "/v1/completions",
        {**PLAIN, "guided_choice": ["a"], "logit_bias": {"97": -100}},
        400,
        "bans and constraints exclude every token",
    ),
    "no choices": ("/v1/completions", {**PLAIN, "guided_choice": []}, 400, "at least 1 item"),
    "nested": ("/v1/completions", {**PLAIN, "guided_json": "[" * 5000}, 400, "json_schema"),
    "two constraints": (
        "/v1/chat/completions",
        {**CHAT, "guided_json": {"type": "null"}, "response_format": {"type": "json_object"}},
        400,
        "response_format and guided_json exclude each other",
    ),
    "a name": (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": "a", "name": "ada"}]},
        400,
        "messages.0.name",
    ),
    "a conversation too long": (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": "a" * 65}]},
        400,
        "context is 64",
    ),
    "only empty": ("/v1/completions", {**PLAIN, "guided_regex": ""}, 400, "only an empty text"),
    "cannot generate": ("/v1/completions", {"model": "encoder", "prompt": "a"}, 400, "no decoder"),
    "a classifier": ("/v1/completions", {"model": "classifier", "prompt": "a"}, 400, "classifier"),
    "no template": ("/v1/chat/completions", {**CHAT, "model": "plain"}, 400, "no chat template"),
    "no messages": ("/v1/chat/completions", {**CHAT, "messages": []}, 400, "messages"),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": [{}]}, 400, "tools"),
    "an image": (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages",
    ),
    "too wide": ("/v1/embeddings", {"model": "plain", "input": "a", "dimensions": 7}, 400, "32 numbers"),
    "empty text": ("/v1/embeddings", {"model": "plain", "input": ""}, 400, "empty"),
    "ids to embed": (
        "/v1/embeddings",
        {"model": "plain", "input": [[1, 2]]},
        400,
        "input: must be a text or a list of texts",
    ),
    "too many texts": (
        "/translate",
        {"model": "both", "text": ["a"] * 2049},
        400,
        "text: List should have at most 2048",
    ),
    "no texts": ("/translate", {"model": "both", "text": []}, 400, "text: List should have at least 1"),
    "long source": ("/translate", {"model": "both", "text": "a" * 99}, 400, "crop"),
    "learned another task": ("/translate", {"model": "texts", "text": "a"}, 400, "was not trained to translate"),
    "no pair": ("/classify", {"model": "pairs", "text": "a"}, 400, "reads pairs of texts: send pair, too"),
    "a pair": ("/classify", {"model": "texts", "text": "a", "pair": "b"}, 400, "reads single texts: leave out pair"),
    "two pairs": ("/classify", {"model": "pairs", "text": "a", "pair": ["b", "c"]}, 400, "1 text and 2 second texts"),
    "cannot translate": ("/translate", {"model": "encoder", "text": "a"}, 400, "no decoder"),
    "no labels": (
        "/classify",
        {"model": "texts", "text": "a", "threshold": 0.5},
        400,
        "threshold = 0.5 is for multi-label models",
    ),
    "cannot classify": ("/classify", {"model": "plain", "text": "a"}, 400, "classify"),
}


def check_error(answer: httpx2.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"]
    assert "/work" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("name", BAD)
def test_what_is_impossible_is_said(http: httpx2.Client, name: str) -> None:
    path, body, status, words = BAD[name]
    check_error(http.post(path, json=body), status, words)
    assert http.post("/v1/completions", json={**PLAIN, "max_tokens": 1}).status_code == 200, "others are answered"


def test_broken_bodies(http: httpx2.Client) -> None:
    typed = {"content-type": "application/json"}
    check_error(http.post("/v1/completions", content=b"{", headers=typed), 400, "not JSON")
    check_error(http.post("/v1/completions", content=b"[1]", headers=typed), 400, "the body")
    check_error(http.post("/v1/completions", content=b"\xff\xfe", headers=typed), 400, "")
    check_error(http.post("/v1/completions", content=b" " * 70_000, headers=typed), 413, "larger than 65536 bytes")
    many = (b" " * 1000 for _ in range(80))  # of a size that is not said before
    check_error(http.post("/v1/completions", content=many, headers=typed), 413, "larger than 65536 bytes")


def test_paths_and_hosts(http: httpx2.Client) -> None:
    for path in ("/nothing", "/v1/../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/"):
        answer = http.get(path)
        assert answer.status_code in (404, 307), path
    check_error(http.get("/v1/models/nope"), 404, "there is no model")
    check_error(http.get("/v1/completions"), 405, "Method Not Allowed")
    check_error(http.get("/health", headers={"host": "evil.example"}), 400, "host name is not allowed")
    assert http.get("/health", headers={"host": "localhost:1"}).status_code == 200
    assert http.options("/v1/completions", headers={"origin": "http://evil.example"}).status_code == 405, "no CORS"


def test_a_slow_body_is_given_up(server: Server) -> None:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        slow.settimeout(10)
        assert b"408" in slow.recv(1000)


def test_a_key(start: Callable[..., Server]) -> None:
    server = start(api_key="sesame", origins=("http://page.example",))
    with httpx2.Client(base_url=server.url) as http:
        assert http.get("/health").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "sesame"},
            {"authorization": "Bearer é"},
        ):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            check_error(http.get("/v1/models", headers=raw), 401, "Authorization: Bearer KEY")
        right = {"authorization": "Bearer sesame"}
        assert http.get("/v1/models", headers=right).status_code == 200
        page = http.get("/v1/models", headers={**right, "origin": "http://page.example"})
        assert page.headers["access-control-allow-origin"] == "http://page.example"


def test_an_address_of_version_6_is_a_host() -> None:
    from heddle.cli.serve import _host_header

    assert [_host_header(host) for host in ("::1", "2001:DB8::5", "[::1]", "Loom")] == [
        "[::1]",
        "[2001:db8::5]",
        "[::1]",
        "loom",
    ]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_large_as_the_limit(http: httpx2.Client, chunked: bool) -> None:
    """Whether it says its size or not."""
    body = json.dumps({**PLAIN, "max_tokens": 1}).encode()
    for size, status in ((1 << 16, 200), ((1 << 16) + 1, 413)):
        content = body + b" " * (size - len(body))
        parts = iter((content[:999], content[999:])) if chunked else content
        kind = {"content-type": "application/json"}
        assert http.post("/v1/completions", content=parts, headers=kind).status_code == status


def test_a_million_faults_are_one(http: httpx2.Client) -> None:
    """Each would be an object of its own, in the thread that answers everybody."""
    for field, value in (("prompt", [1] * 9_000 + [-1]), ("prompt", [[-1]] * 9_000), ("prompt", ["a"] * 9_000 + [1])):
        answer = http.post("/v1/completions", json={**PLAIN, field: value})
        check_error(answer, 400, "prompt")
    request = CompletionRequest.model_validate({**PLAIN, "prompt": [1, 2]})
    assert request.prompt == [1, 2]
    with pytest.raises(ValidationError) as raised:
        CompletionRequest.model_validate({**PLAIN, "prompt": [[-1]] * 1000})
    assert raised.value.error_count() < 10


def test_what_a_client_sends_back_may_be_null(http: httpx2.Client) -> None:
    answer = {
        "role": "assistant",
        "content": "b",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "tool_calls": None,
    }
    body = {**CHAT, "messages": [*CHAT["messages"], answer, *CHAT["messages"]], "max_tokens": 2, "tools": None}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    body = {"model": "plain", "input": "a", "encoding_format": None}
    assert http.post("/v1/embeddings", json=body).status_code == 200
    nothing = {**CHAT, "messages": [{"role": "user", "content": None}]}
    check_error(http.post("/v1/chat/completions", json=nothing), 400, "messages.0.content: Field required")


def test_an_echo_alone_has_no_completion(http: httpx2.Client) -> None:
    body = {**PLAIN, "max_tokens": 0, "echo": True, "logprobs": 1}
    assert http.post("/v1/completions", json=body).json()["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 0,
        "total_tokens": 1,
    }


def test_a_prompt_counts_once_however_many_texts_follow_it(http: httpx2.Client) -> None:
    used = [http.post("/v1/completions", json={**PLAIN, "prompt": "abc", "n": n}).json()["usage"] for n in (1, 3)]
    assert [each["prompt_tokens"] for each in used] == [3, 3]
    assert used[1]["total_tokens"] == 3 + used[1]["completion_tokens"]


def test_errors_of_a_conversation_name_its_field(http: httpx2.Client) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "a" * 65}]}
    assert http.post("/v1/chat/completions", json=long).json()["error"]["param"] == "messages"


def test_a_chat_model_ends_other_texts_where_they_end(http: httpx2.Client) -> None:
    """At the token that ends texts, which an answer's end does not replace."""
    for name in ("<|endoftext|>", "<|end|>"):
        bias = {str(TOKENIZER.special[name]): 100}
        body = {"model": "chat", "prompt": "a", "max_tokens": 9, "logit_bias": bias}
        (choice,) = http.post("/v1/completions", json=body).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop"), name


def test_streams_are_in_ascii(http: httpx2.Client) -> None:
    """Since some clients end a line at U+2028."""
    body = {**PLAIN, "guided_choice": ["a\u2028b"], "stream": True, "max_tokens": 9}
    raw = http.post("/v1/completions", json=body).content
    assert raw.isascii()
    documents = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]
    assert "".join(each["choices"][0]["text"] for each in documents) == "a\u2028b"


def test_texts_grow_while_others_are_embedded(start: Callable[..., Server]) -> None:
    """However many requests of that kind wait."""
    server = start(engine={"rows": 2, "queue": 64})
    worker, over = server.app.state.service.served["plain"].worker, threading.Event()

    def again() -> None:
        time.sleep(0.01)
        if not over.is_set():
            worker.call(again)

    for _ in range(3):  # as soon as one has been done, the next one waits
        worker.call(again)
    try:
        with httpx2.Client(base_url=server.url, timeout=20) as http:
            assert http.post("/v1/completions", json={**PLAIN, **ENDLESS}).status_code == 200
    finally:
        over.set()


def test_requests_that_wait_are_bounded(start: Callable[..., Server]) -> None:
    server = start(engine={"rows": 1, "queue": 2})
    worker, go = server.app.state.service.served["plain"].worker, threading.Event()
    worker.call(go.wait)
    held = time.monotonic() + 10
    while not worker._calls.empty():
        assert time.monotonic() < held
        time.sleep(0.01)
    waiting = [worker.call(lambda: None) for _ in range(3)]
    waiting.pop().cancel()
    try:
        with httpx2.Client(base_url=server.url, timeout=20) as http:
            answer = http.post("/v1/embeddings", json={"model": "plain", "input": "a"})
            check_error(answer, 429, "3 requests waiting; try again later")
    finally:
        go.set()
    assert [each.result(10) for each in waiting] == [None, None]


def test_a_thread_that_fails_says_so(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever, neither those that are in it nor those that come later."""
    server = start()
    worker = server.app.state.service.served["plain"].worker
    slow_down(server, 0.05)

    def fail(*_: Any) -> None:
        raise MemoryError

    with httpx2.Client(base_url=server.url, timeout=20) as http:
        with http.stream("POST", "/v1/completions", json={**PLAIN, **ENDLESS, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            monkeypatch.setattr(worker, "_deliver", fail)
            last = [line for line in lines if line][-1]
        assert "the model failed" in json.loads(last.removeprefix("data: "))["error"]["message"]
        for _ in range(2):
            check_error(http.post("/v1/completions", json=PLAIN), 500, "restart the server")
        check_error(http.post("/v1/embeddings", json={"model": "plain", "input": "a"}), 500, "restart the server")
        answer = http.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "broken"})
        assert http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200, "others go on"


def test_texts_that_do_not_fit_into_memory_end(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their error says what to lower; the server goes on."""
    server = start()

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with httpx2.Client(base_url=server.url, timeout=20) as http:
        with monkeypatch.context() as patch:
            patch.setattr("heddle.generate.engine.feed", full)
            line = (
                "the server ran out of memory with 1 text of up to 1 token at a time: use fewer texts, a lower max_tokens, "
                "shorter prompts, or a smaller model; started with a lower --rows, it has more room for each text"
            )
            check_error(http.post("/v1/completions", json=PLAIN), 500, line)
        assert http.post("/v1/completions", json=PLAIN).status_code == 200


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_calls_that_do_not_fit_into_memory_end(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The request is valid, so the error is the server's; it goes on."""
    server = start()
    path, body = "/v1/embeddings", {"model": "plain", "input": ["a", "the warp"]}

    def full(*_: Any, **__: Any) -> None:
        raise error

    with httpx2.Client(base_url=server.url, timeout=20) as http:
        with monkeypatch.context() as patch:
            patch.setattr("heddle.predict.rows._hidden", full)
            line = "the server ran out of memory with 2 rows of 8 tokens: use shorter texts, or a smaller model"
            check_error(http.post(path, json=body), 500, line)
        assert http.post(path, json=body).status_code == 200
        assert http.post("/v1/completions", json=PLAIN).status_code == 200


def test_answers_end_with_an_error_where_the_server_does(start: Callable[..., Server]) -> None:
    server = start()
    slow_down(server, 0.1)
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        with http.stream("POST", "/v1/completions", json={**PLAIN, **ENDLESS, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.app.state.service.end_in(0.0)
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        check_error(http.post("/v1/completions", json={**PLAIN, **ENDLESS}), 503, "shutting down")
    server.check_idle("plain")


def test_a_client_that_reads_nothing_is_given_up(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.serve.streaming.GRACE", 0.2)
    server = start(seconds=0.5)
    held = threading.Event()

    async def stuck(self: Any, scope: Any, receive: Any, send: Any) -> None:
        held.set()
        await asyncio.sleep(60)

    monkeypatch.setattr("fastapi.sse.EventSourceResponse.__call__", stuck)
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        http.post("/v1/completions", json={**PLAIN, **ENDLESS, "stream": True})  # or it would raise its own timeout
    assert held.is_set()
    server.check_idle("plain")


def slow_down(server: Server, seconds: float) -> None:
    """Let each pass of the plain model take so long."""
    original = server.models["plain"].forward

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return original(*args, **more)

    server.models["plain"].forward = slow  # type: ignore[method-assign]


def test_a_full_queue_says_when_to_try_again(start: Callable[..., Server]) -> None:
    server = start(engine={"rows": 1, "queue": 2})
    slow_down(server, 0.1)
    with httpx2.Client(base_url=server.url) as http:
        with http.stream("POST", "/v1/completions", json={**PLAIN, **ENDLESS, "n": 2, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)  # one text grows and one waits
            answer = http.post("/v1/completions", json={**PLAIN, "n": 2})
        check_error(answer, 429, "1 text waiting; try again later")
        assert answer.headers["retry-after"] == "1"
        server.check_idle("plain")
        assert http.post("/v1/completions", json={**PLAIN, "n": 2}).status_code == 200


def test_an_answer_that_takes_too_long(start: Callable[..., Server]) -> None:
    server = start(seconds=0.3)
    endless = {**PLAIN, **ENDLESS}
    slow_down(server, 0.2)
    with httpx2.Client(base_url=server.url) as http:
        check_error(
            http.post("/v1/completions", json=endless),
            503,
            "0.3 seconds",
        )
        with http.stream("POST", "/v1/completions", json={**endless, "stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert "0.3 seconds" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]
    server.check_idle("plain")


def test_a_broken_model_breaks_its_own_answers(start: Callable[..., Server]) -> None:
    server = start()
    with torch.no_grad():
        server.models["plain"].embedding.weight.fill_(torch.nan)
    with httpx2.Client(base_url=server.url) as http:
        check_error(http.post("/v1/completions", json=PLAIN), 500, "NaN or infinite")
        with http.stream("POST", "/v1/completions", json={**PLAIN, "stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert "error" in json.loads(lines[-1].removeprefix("data: "))
        assert http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3}).status_code == 200


def test_translations_and_classes(http: httpx2.Client) -> None:
    answer = http.post(
        "/translate", json={"model": "both", "text": ["warp", "weft"], "beams": 2, "max_tokens": 5}
    ).json()
    assert [each["tokens"] <= 5 for each in answer["translations"]] == [True, True]
    whole = http.post("/translate", json={"model": "both", "text": ["a" * 99] * 20, "crop": True, "max_tokens": 2})
    assert len(whole.json()["translations"]) == 20
    (prediction,) = http.post("/classify", json={"model": "classifier", "text": "warp"}).json()["predictions"]
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)


def test_an_error_counts_all_texts_of_the_request(http: httpx2.Client) -> None:
    """Although a few of them are computed at a time."""
    request = {"model": "both", "text": ["a"] * 17 + ["a" * 99], "max_tokens": 1}
    check_error(http.post("/translate", json=request), 400, "source 17 has 99 tokens")
    check_error(
        http.post("/v1/embeddings", json={"model": "plain", "input": ["a"] * 16 + [" "]}), 400, "item 16 is empty"
    )


def test_the_servers_limit_of_tokens_applies_to_translations(start: Callable[..., Server]) -> None:
    with httpx2.Client(base_url=start(max_tokens=3).url) as http:
        translations = http.post("/translate", json={"model": "both", "text": ["warp", "weft"]}).json()["translations"]
        assert all(each["tokens"] <= 3 for each in translations)


def test_a_prompt_that_is_read_as_a_whole_is_not_scored() -> None:
    model = build(DECODER.override({"decoder.prefix": True}), seed=1).eval()
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("prefix", model, TOKENIZER)])
    try:
        with httpx2.Client(base_url=server.url) as http:
            request = {"model": "prefix", "prompt": "warp", "max_tokens": 2}
            assert http.post("/v1/completions", json={**request, "echo": True}).status_code == 200
            check_error(
                http.post("/v1/completions", json={**request, "echo": True, "logprobs": 0}), 400, "leave out echo"
            )
    finally:
        server.stop()


def test_a_forced_beginning_is_no_text_and_no_constraint_forbids_it() -> None:
    """As in BART, whose decoder must begin with one id, and must end with another if it is cut off."""
    ids = {"decoder_start": 2, "end": 2, "forced_begin": 3, "forced_end": 2}
    model = build(TransformerConfig.of({**BOTH, **LOUD, "ids": ids}), seed=1).eval()
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("bart", model, TOKENIZER)])
    request: dict[str, Any] = {"model": "bart", "prompt": "warp", "max_tokens": 12, "logprobs": 1}
    try:
        with httpx2.Client(base_url=server.url) as http:
            once = {**request, "logit_bias": {"3": -100}}
            (plain,) = http.post("/v1/completions", json=once).json()["choices"]
            assert plain["logprobs"]["tokens"][0] == ""
            assert not plain["text"].startswith(TOKENIZER.decode([3]))
            (chosen,) = http.post("/v1/completions", json={**request, "guided_choice": ["warp", "weft"]}).json()[
                "choices"
            ]
            assert chosen["text"] in ("warp", "weft")
            (cut,) = http.post("/v1/completions", json={**request, "guided_regex": "[a-c]{40}"}).json()["choices"]
            assert re.fullmatch("[a-c]{10}", cut["text"])
    finally:
        server.stop()


def test_pairs_are_classified_as_pairs(http: httpx2.Client, server: Server) -> None:
    request = {"model": "pairs", "text": ["warp", "weft"] * 9, "pair": ["loom", "reed"] * 9}
    predictions = http.post("/classify", json=request).json()["predictions"]
    pairs = list(zip(request["text"], request["pair"], strict=True))
    expected = classify(models()["classifier"], TOKENIZER, pairs)
    assert [each["probabilities"] for each in predictions] == [pytest.approx(each.probabilities) for each in expected]


def test_an_embedding_says_whether_its_text_was_cut(http: httpx2.Client) -> None:
    data = http.post("/v1/embeddings", json={"model": "plain", "input": ["a", "a" * 99]}).json()["data"]
    assert [each["cut"] for each in data] == [False, True]


def test_metrics_and_description(http: httpx2.Client, server: Server) -> None:
    http.post("/v1/completions", json={**PLAIN, "max_tokens": 5})
    server.check_idle("plain")  # an answer leaves a moment before its row is out of the worker's books
    metrics = http.get("/metrics").text
    assert 'heddle:num_requests_running{model_name="plain"} 0.0' in metrics
    assert "heddle:time_to_first_token_seconds_bucket" in metrics
    http.post("/classify", json={"model": "plain", "text": "a"})
    http.get("/made/up")
    metrics = http.get("/metrics").text
    assert re.search(r'heddle:requests_total\{code="200",path="/v1/completions"\} [1-9]', metrics)
    assert re.search(r'heddle:requests_total\{code="400",path="/classify"\} [1-9]', metrics)
    assert re.search(r'heddle:requests_total\{code="404",path="other"\} [1-9]', metrics)
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/translate", "/classify"} <= set(paths)


def test_draining(start: Callable[..., Server]) -> None:
    server = start()
    with httpx2.Client(base_url=server.url) as http:
        server.app.state.service.drain()
        assert http.get("/health").status_code == 503
        check_error(http.post("/v1/completions", json=PLAIN), 503, "shutting down")


def test_runs_that_cannot_be_served_together() -> None:
    run = ServedRun("a", models()["plain"], TOKENIZER)
    with pytest.raises(HeddleError, match="two runs are called 'a'"):
        make_app([run, run], ServeConfig())
    with pytest.raises(HeddleError, match="at least one run"):
        make_app([], ServeConfig())


def test_a_template_without_an_end_is_an_error_of_its_request() -> None:
    """Neither it nor what it asks of files reaches the server, which answers the next request."""
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = (
        f"{{% if messages[0].content == 'endless' %}}{endless}{{% endif %}}"
        "{% if messages[0].content == 'file' %}{% include '/etc/hostname' %}{% endif %}<|user|>{{ messages[0].content }}"
    )
    model = build(DECODER.override({"chat": {"template": source}}), seed=1).eval()
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("mean", model, TOKENIZER)])
    request: dict[str, Any] = {"model": "mean", "max_tokens": 2}
    try:
        with httpx2.Client(base_url=server.url, timeout=30) as http:
            for content, error in (("endless", "did not finish within 1 s"), ("file", "no loader"), ("warp", None)):
                body = {**request, "messages": [{"role": "user", "content": content}]}
                answer = http.post("/v1/chat/completions", json=body)
                if error is None:
                    assert answer.json()["usage"]["completion_tokens"] in (1, 2)
                else:
                    check_error(answer, 400, error)
    finally:
        server.stop()


def test_ids_without_text_may_be_among_the_most_probable() -> None:
    """As in padded models, which have more ids than their tokenizers."""
    wide = build(DECODER.override({"vocab_size": TOKENIZER.vocab_size + 200, "chat": {}}), seed=1).eval()
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("wide", wide, TOKENIZER)])
    try:
        with httpx2.Client(base_url=server.url, timeout=30) as http:
            request: dict[str, Any] = {"model": "wide", "prompt": "a", "max_tokens": 8, "logprobs": 20, "seed": 1}
            (choice,) = http.post("/v1/completions", json=request).json()["choices"]
            shown = {name for each in choice["logprobs"]["top_logprobs"] for name in each}
            assert {f"<{id}>" for id in range(TOKENIZER.vocab_size, TOKENIZER.vocab_size + 200)} & shown
            talk = {**CHAT, "model": "wide", "max_tokens": 8, "logprobs": True, "top_logprobs": 20}
            assert len(http.post("/v1/chat/completions", json=talk).json()["choices"][0]["logprobs"]["content"]) > 0
            prompt = [97, TOKENIZER.vocab_size + 7]
            (echoed,) = http.post("/v1/completions", json={**request, "prompt": prompt, "echo": True}).json()["choices"]
            assert echoed["text"].startswith(f"a<{prompt[1]}>")
            assert echoed["logprobs"]["tokens"][:2] == ["a", f"<{prompt[1]}>"]
    finally:
        server.stop()
