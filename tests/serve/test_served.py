"""What a served run has room for and refuses, how requests become settings, and what is counted, without a client."""

import time
from types import SimpleNamespace

import pytest

from heddle.config import SamplingConfig
from heddle.config.decoding import DecodingDefaults
from heddle.config.serve import ServeConfig
from heddle.generate import generate
from heddle.serve import ServedRun
from heddle.serve.completions import sampling_configs
from heddle.serve.errors import ApiError
from heddle.serve.metrics import Metrics
from heddle.serve.requests import CompletionRequest, TranslateRequest
from heddle.serve.served import ServedModel
from heddle.serve.worker import Worker
from tests.serve.conftest import CONTEXT, ENGINE, TOKENIZER, models


@pytest.fixture(scope="module")
def served() -> dict[str, ServedModel]:
    return {name: ServedModel(ServedRun(name, models()[name], TOKENIZER), ENGINE) for name in ("plain", "both")}


@pytest.mark.parametrize("length", [1, CONTEXT - 3, CONTEXT])
def test_there_is_room_for_as_many_tokens_as_the_context_lets_follow(
    served: dict[str, ServedModel], length: int
) -> None:
    prompt = [97] * length
    greedy = SamplingConfig(temperature=0, max_tokens=2 * CONTEXT)
    *_, last = events = list(generate(served["plain"].model, [prompt], greedy))
    assert last.finish == "context"
    assert served["plain"].room((prompt, None)) == len(events)


def test_the_longest_prompt_and_the_last_id_are_taken(served: dict[str, ServedModel]) -> None:
    count = TOKENIZER.vocab_size
    served["plain"].check(([count - 1] * CONTEXT, None), "prompt")
    served["both"].check(([], [count - 1] * CONTEXT), "prompt")
    for name, wrong in (("plain", ([0] * (CONTEXT + 1), None)), ("both", ([], [0] * (CONTEXT + 1)))):
        with pytest.raises(ApiError, match=f"{CONTEXT + 1} tokens, but the model's context is {CONTEXT}"):
            served[name].check(wrong, "prompt")
    for name, wrong in (("plain", ([3, count], None)), ("both", ([], [count]))):
        with pytest.raises(ApiError, match=f"the id {count}; ids must be below {count}"):
            served[name].check(wrong, "prompt")


def test_texts_of_a_request_have_seeds_of_their_own_and_no_more_tokens_than_the_server_allows(
    served: dict[str, ServedModel],
) -> None:
    body = CompletionRequest(model="plain", seed=5)
    for requested, tokens in ((6, 6), (7, 7), (8, 7)):
        samplings = sampling_configs(body, served["plain"], ServeConfig(max_tokens=7), 3, requested, None)
        assert [(each.seed, each.max_tokens) for each in samplings] == [(seed, tokens) for seed in (5, 6, 7)]


def test_a_bias_of_minus_100_bans_an_id() -> None:
    sampling = CompletionRequest(model="m", logit_bias={120: -100, 121: -99.5, 122: 100}).sampling(5, None, 1)
    assert sampling.banned == ((120,),)
    assert dict(sampling.logit_bias) == {121: -99.5, 122: 100}


def test_a_shorter_translation_than_the_models_shortest_is_possible() -> None:
    """The server's limit is below what the model's files ask for."""
    config = TranslateRequest(model="m", text="a").beam_config(3, DecodingDefaults(min_tokens=10, max_tokens=30))
    assert (config.max_tokens, config.min_tokens) == (3, 2)
    config = TranslateRequest(model="m", text="a").beam_config(None, DecodingDefaults(min_tokens=10, max_tokens=30))
    assert (config.max_tokens, config.min_tokens) == (30, 10)


def test_times_are_from_token_to_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 11.0, 11.5, 12.5, 16.5, 20.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    metrics = Metrics({})
    clock = metrics.clock("m")
    clock.prompt(5)
    for text in (0, 1, 0, 0):
        clock.token(text)
    clock.end()

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"heddle:{name}", {"model_name": "m"})

    sums = {
        name: value(f"{name}_seconds_sum")
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
    }
    assert sums == {"time_to_first_token": 1 + 1.5, "inter_token_latency": 1.5 + 4, "e2e_request_latency": 10}
    assert (value("prompt_tokens_total"), value("generation_tokens_total")) == (5, 4)
    assert value("time_to_first_token_seconds_count") == 2


def test_texts_whose_prompts_are_being_read_wait() -> None:
    engine = SimpleNamespace(waiting=[1], prefill=SimpleNamespace(rows=[2, 3]), active=[4, 5, 6, 7])
    books = SimpleNamespace(engine=engine)
    Worker._count(books)  # type: ignore[arg-type]
    assert (books.running, books.waiting) == (4, 3)
    engine.prefill = None
    Worker._count(books)  # type: ignore[arg-type]
    assert (books.running, books.waiting) == (4, 1)
