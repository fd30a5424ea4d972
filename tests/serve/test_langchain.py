"""LangChain's package for OpenAI's API, unchanged, against the server."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.serve.conftest import Server

pytest.importorskip("langchain_openai")

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

TALK = [SystemMessage("weave"), HumanMessage("two yarns")]


@pytest.fixture
def access(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Where the server is, by connections that end with the test; nothing is told to anybody else."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    with httpx2.Client(timeout=30) as http:
        yield {"base_url": f"{server.url}/v1", "api_key": "unused", "max_retries": 0, "http_client": http}


@pytest.fixture
def chat(access: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(model="chat", seed=4, max_completion_tokens=12, **access)


def test_an_answer_is_that_of_the_other_client(chat: ChatOpenAI, client: OpenAI) -> None:
    answer = chat.invoke(TALK)
    messages: Any = [{"role": "system", "content": "weave"}, {"role": "user", "content": "two yarns"}]
    same = client.chat.completions.create(model="chat", messages=messages, seed=4, max_completion_tokens=12)
    assert answer.content == same.choices[0].message.content
    assert answer.response_metadata["finish_reason"] == same.choices[0].finish_reason
    assert same.usage is not None
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == same.usage.completion_tokens


def test_a_streamed_answer_is_the_whole_one(chat: ChatOpenAI) -> None:
    assert "".join(str(part.content) for part in chat.stream(TALK)) == chat.invoke(TALK).content


def test_several_conversations_at_once(chat: ChatOpenAI) -> None:
    talks = [[HumanMessage(text)] for text in ("warp", "weft", "loom")]
    assert [each.content for each in chat.batch(talks)] == [chat.invoke(talk).content for talk in talks]


def test_vectors(access: dict[str, Any], client: OpenAI) -> None:
    embeddings = OpenAIEmbeddings(model="encoder", check_embedding_ctx_length=False, **access)
    listed = client.embeddings.create(model="encoder", input=["warp", "weft"], encoding_format="float")
    assert embeddings.embed_documents(["warp", "weft"]) == [pytest.approx(each.embedding) for each in listed.data]
