"""The `openai` package, unchanged, against the server; its answers beside the library's own."""

import json
import random
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai import OpenAI

from heddle.config import SamplingConfig
from heddle.generate import naive
from heddle.predict import embed
from tests.serve.conftest import CONTEXT, TOKENIZER, Server, models

MODELS = models()  # twins of those that are served


def written(prompt: str, **sampling: Any) -> str:
    config = SamplingConfig(**sampling)
    return TOKENIZER.decode(naive(MODELS["plain"], TOKENIZER.encode(prompt), config, TOKENIZER.end_of_text))


def test_models(client: OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [*MODELS, "pairs", "texts"]
    assert client.models.retrieve("chat").model_dump()["max_model_len"] == CONTEXT


def test_completions_are_the_librarys(client: OpenAI) -> None:
    for seed, prompt in enumerate(("warp", "the weft", "ä€🙂")):
        completion = client.completions.create(model="plain", prompt=prompt, max_tokens=20, seed=seed, temperature=0.9)
        (choice,) = completion.choices
        assert choice.text == written(prompt, max_tokens=20, seed=seed, temperature=0.9)
        assert choice.finish_reason == "length"
        ids = TOKENIZER.encode(prompt)
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(ids), 20)
        same = client.completions.create(model="plain", prompt=ids, max_tokens=20, seed=seed, temperature=0.9)
        assert same.choices[0].text == choice.text


def test_every_prompt_has_n_texts_in_order(client: OpenAI) -> None:
    prompts = ["warp", "weft", "warp"]
    completion = client.completions.create(model="plain", prompt=prompts, n=3, max_tokens=6, seed=10)
    assert [choice.index for choice in completion.choices] == list(range(9))
    expected = [written(prompts[place // 3], max_tokens=6, seed=10 + place) for place in range(9)]
    assert [choice.text for choice in completion.choices] == expected


def test_streamed_text_is_the_whole_text(client: OpenAI) -> None:
    """Also where characters are made of several tokens, and where a stop text is cut."""
    ends = set()
    for seed in range(3):
        request: dict[str, Any] = {"model": "plain", "prompt": "é", "max_tokens": 30, "seed": seed, "stop": ["q", "zz"]}
        request |= {"logit_bias": {str(TOKENIZER.encode("q")[0]): 6}} if seed == 2 else {}
        whole = client.completions.create(**request)
        options: Any = {"include_usage": True}
        *parts, last = client.completions.create(**request, stream=True, stream_options=options)
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        assert [part.choices[0].finish_reason for part in parts][-1] == whole.choices[0].finish_reason
        assert last.choices == []
        assert last.usage is not None
        assert whole.usage is not None
        assert last.usage.total_tokens == whole.usage.total_tokens
        ends.add(whole.choices[0].finish_reason)
    assert ends == {"stop", "length"}


def test_log_probabilities_cover_an_echoed_prompt(client: OpenAI) -> None:
    """As lm-eval asks for them: greedy, one token, echo; its comparison of the largest alternative is exact."""
    ids = TOKENIZER.encode("the loom")
    completion = client.completions.create(
        model="plain", prompt=ids, max_tokens=1, logprobs=3, echo=True, temperature=0, seed=1
    )
    (choice,) = completion.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert choice.text.startswith("the loom")
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(ids) + 1
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    logs = MODELS["plain"].logits(MODELS["plain"](torch.tensor([ids])).hidden[0]).log_softmax(-1)
    for place, id in enumerate(ids[1:], start=1):
        assert logprobs.token_logprobs[place] == pytest.approx(logs[place - 1, id].item(), abs=1e-4)
        assert len(logprobs.top_logprobs[place]) <= 3
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())
    alone = client.completions.create(model="plain", prompt=ids, max_tokens=0, logprobs=1, echo=True)
    assert alone.choices[0].text == "the loom"
    assert alone.choices[0].logprobs is not None
    assert alone.choices[0].logprobs.token_logprobs is not None
    assert alone.choices[0].logprobs.token_logprobs[1:] == logprobs.token_logprobs[1:-1]


def test_conversations(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "two "}, {"type": "text", "text": "yarns"}]}]
    request: dict[str, Any] = {"model": "chat", "messages": messages, "seed": 4, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**request, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.role for choice in whole.choices] == ["assistant"] * 2
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(len(each.top_logprobs) == 2 for each in logprobs.content)
    texts = {0: "", 1: ""}
    for part in client.chat.completions.create(**request, n=2, stream=True):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == [choice.message.content for choice in whole.choices]
    plain: Any = [{"role": "user", "content": "two yarns"}]
    same = client.chat.completions.create(**{**request, "messages": plain})
    assert same.choices[0].message.content == texts[0]


@pytest.mark.parametrize("model", ["plain", "encoder", "both"])
def test_vectors(client: OpenAI, model: str) -> None:
    texts = ["warp", "the weft"]
    vectors = client.embeddings.create(model=model, input=texts)  # base64, the client's default
    listed = client.embeddings.create(model=model, input=texts, encoding_format="float")
    expected = embed(MODELS[model], TOKENIZER, texts).vectors
    for one, other, row in zip(vectors.data, listed.data, expected, strict=True):
        assert one.embedding == other.embedding
        assert np.allclose(one.embedding, row, atol=1e-6)


def test_biases_and_bans(client: OpenAI) -> None:
    request: dict[str, Any] = {"model": "plain", "prompt": "warp", "max_tokens": 8, "temperature": 0}
    x, y = (str(TOKENIZER.encode(letter)[0]) for letter in "xy")
    assert client.completions.create(**request, logit_bias={x: 100}).choices[0].text == "x" * 8
    assert client.completions.create(**request, logit_bias={x: -100, y: 99}).choices[0].text == "y" * 8


def test_constrained_answers(client: OpenAI) -> None:
    properties = {"n": {"type": "integer", "maximum": 9, "minimum": 0}}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["n"]}
    schema["additionalProperties"] = False
    request: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "temperature": 2.0}
    named: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    for seed in range(4):
        completion = client.chat.completions.create(**request, seed=seed, response_format=named)
        assert json.loads(completion.choices[0].message.content or "")["n"] in range(10)
        assert completion.choices[0].finish_reason == "stop"
        one = client.completions.create(
            model="plain", prompt="a", seed=seed, extra_body={"guided_choice": ["warp", "weft"]}
        )
        assert one.choices[0].text in ("warp", "weft")
    with pytest.raises(openai.BadRequestError, match="unclosed group"):
        client.completions.create(model="plain", prompt="a", extra_body={"guided_regex": "(a"})
    wrong = {"type": "integer", "minimum": 2, "maximum": 1}
    with pytest.raises(openai.BadRequestError, match="Unsatisfiable"):
        client.completions.create(model="plain", prompt="a", extra_body={"guided_json": wrong})


def test_many_at_once_are_each_alone(server: Server) -> None:
    """More than may grow at once; some clients leave in the middle. Nothing is left behind."""
    import asyncio

    async def one(client: openai.AsyncOpenAI, number: int) -> str | None:
        await asyncio.sleep(random.Random(number).random() / 4)
        request: dict[str, Any] = {"model": "plain", "prompt": f"warp {number}", "max_tokens": 12, "seed": number}
        text, leaves = "", number % 4 == 3
        stream = await client.completions.create(**request, stream=True)
        async for part in stream:
            text += part.choices[0].text
            if leaves and len(text) > 5:
                await stream.close()
                return None
        return text

    async def every() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=8) as client:
            return await asyncio.gather(*(one(client, number) for number in range(30)))

    for number, text in enumerate(asyncio.run(every())):
        assert text is None or text == written(f"warp {number}", max_tokens=12, seed=number)
    server.check_idle("plain")
