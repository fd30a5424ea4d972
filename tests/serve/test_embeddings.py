"""Embeddings of a model with prompts, asked for by OpenAI's own client."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

import heddle
from heddle.config import TransformerConfig
from heddle.config.serve import ServeConfig
from heddle.model import build
from heddle.serve import ServedRun, make_app
from tests.serve.conftest import BOTH, LOUD, STACK, TOKENIZER, Running

HEAD = {
    "kind": "embedding", "pooling": "weighted_mean", "dense": [{"outputs": 5}], "normalise": True, "length": 30,
    "prompts": {"query": "query: ", "passage": "passage: "}, "prompt": "passage",
}  # fmt: skip
MODEL = build(TransformerConfig.of({**BOTH, **LOUD, "encoder": STACK, "decoder": None, "head": HEAD}), seed=1).eval()


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    running = Running(make_app([ServedRun("vectors", MODEL, TOKENIZER)], ServeConfig()))
    yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    running.stop()


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt_name": "query"}, {"prompt": ""}, {"prompt": "find: "}, {"pooling": "max", "normalise": True}],
    ids=str,
)
def test_a_request_may_name_a_prompt(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """As `heddle.embed` is called; without one, the model's default prompt."""
    texts = ["the warp", "a weft that is much longer than the model reads"]
    answer = client.embeddings.create(model="vectors", input=texts, extra_body=fields)
    expected = heddle.embed(MODEL, TOKENIZER, texts, **fields).vectors
    assert expected.shape == (2, 16 if "pooling" in fields else 5)
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=1e-6)
    prompt = fields.get("prompt", {"query": "query: ", None: "passage: "}[fields.get("prompt_name")])
    assert answer.usage.prompt_tokens == sum(len(prompt + text) for text in texts)  # of bytes


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt_name": "qery"}, "prompt_name", "Did you mean 'query'?"),
        ({"prompt_name": "query", "prompt": "find: "}, "prompt_name", "exclude each other"),
        ({"dimensions": 16}, "dimensions", "have 5 numbers"),
        ({"pooling": "median"}, "pooling", "weighted_mean"),
    ],
    ids=str,
)
def test_other_prompts_are_refused(client: openai.OpenAI, fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.embeddings.create(model="vectors", input="the warp", extra_body=fields)
    assert refused.value.param == param
