"""The engine: rows that come and go at any step, prompts read in pieces or once for several rows, guessed tokens."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from heddle.config import EngineConfig, SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import DraftModel, Engine, Event, PromptLookup, QueueFull, naive
from heddle.model import Transformer, build
from tests.generate.conftest import Make
from tests.models import BOTH, COMBINATIONS, PREFIXED, name_of
from tests.running import unchecked

FAMILIES = [*COMBINATIONS[::9], *PREFIXED[:1], *BOTH[:3]]
CONTEXT = 16
SAMPLINGS = [
    SamplingConfig(temperature=0, max_tokens=9),
    SamplingConfig(temperature=0.8, max_tokens=6, seed=3),
    SamplingConfig(temperature=1.3, top_k=9, max_tokens=5, logprobs=2),
    SamplingConfig(temperature=0, max_tokens=17),  # until the context is full
    SamplingConfig(temperature=0.9, max_tokens=17, window=True, repetition_penalty=1.2, seed=5),
    SamplingConfig(min_p=0.1, presence_penalty=0.4, logit_bias={3: 1.5}, banned=((5,), (2, 4)), max_tokens=7),
]
TEXTS = 6000  # of a chi-square test
LIMITS = [
    EngineConfig(),
    EngineConfig(rows=2),
    EngineConfig(chunk=5),
    EngineConfig(rows=3, chunk=8, keep=2),
]


def tiny(config: Any, **changed: Any) -> Transformer:
    settings = {"initial": {"std": 0.3, "scale_residual": False}, "context": CONTEXT} | changed
    return build(config.override(settings), seed=1).eval()


def source_of(model: Transformer, row: int) -> list[int] | None:
    return None if model.encoder is None else [(7 * row + step) % 10 + 1 for step in range(row % 5 + 1)]


def test_a_step_reads_the_device_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its rows' samplings ask for."""
    engine, reads, read = Engine(make(), 0), list[int](), torch.Tensor.tolist
    for row, sampling in enumerate(SAMPLINGS):
        engine.submit([row + 1, 2], sampling, seed=row)
    engine.step()
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor.numel()) or read(tensor))
    events = engine.step()
    assert len(events) == len(SAMPLINGS)
    assert [len(event.top) for event in events] == [sampling.logprobs or 0 for sampling in SAMPLINGS]
    assert len(reads) == 1


def cannot_take_back(config: Any) -> bool:
    return not tiny(config).new_cache(1).truncates


def run(engine: Engine) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {}
    while engine:
        for event in engine.step():
            events.setdefault(event.row, []).append(event)
    return events


def ids(events: Sequence[Event]) -> list[int]:
    return [event.token for event in events]


@pytest.mark.parametrize("config", FAMILIES, ids=name_of)
def test_a_row_is_the_naive_loop_whatever_comes_and_goes_beside_it(config: Any) -> None:
    """Rows of six samplings are admitted and cancelled at random steps, under two of four limits."""
    model = tiny(config)
    count, first = model.vocab_size, FAMILIES.index(config) % 2
    for number, limits in list(enumerate(LIMITS))[first::2]:
        chance = random.Random(number)
        engine, texts, requests = Engine(model, 0, config=limits), dict[int, list[int]](), list[Any]()
        while len(requests) < 7 or engine:
            for _ in range(chance.choice((0, 0, 1, 2))):
                if len(requests) < 7:
                    prompt = [chance.randrange(1, count) for _ in range(chance.randrange(1, 10))]
                    prompt = list(requests[-1][0]) if requests and chance.random() < 0.2 else prompt
                    requests.append((prompt, chance.choice(SAMPLINGS), source_of(model, len(requests))))
                    assert (
                        engine.submit(*requests[-1][:2], seed=len(requests), source=requests[-1][2])
                        == len(requests) - 1
                    )
            for event in engine.step():
                texts.setdefault(event.row, []).append(event.token)
            if chance.random() < 0.1 and requests:
                engine.leave({chance.randrange(len(requests))})
            assert limits.rows is None or len(engine.active) <= limits.rows
        for row, (prompt, sampling, source) in enumerate(requests):
            with unchecked():
                alone = naive(model, prompt, sampling, 0, source, seed=row + 1)
            got = texts.get(row, [])
            assert got == alone[: len(got)], (limits, row)
        assert sum(map(len, texts.values())) > 12


def test_a_step_reads_at_most_a_chunk_of_prompts(make: Make) -> None:
    model, seen = make(context=64).eval(), list[int]()
    engine = Engine(model, config=EngineConfig(chunk=8))
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel()))
    greedy = SamplingConfig(temperature=0, max_tokens=30)
    engine.submit([1, 2, 3], greedy)
    engine.step()
    engine.submit(list(range(1, 31)), greedy)
    seen.clear()
    for _ in range(4):
        assert {event.row for event in engine.step()} >= {0}, "the first row grows in every step"
    assert seen == [1, 8, 1, 8, 1, 8, 1, 6]


def test_equal_prompts_are_read_once_and_a_kept_beginning_is_not_read_again(make: Make) -> None:
    model, seen = make(context=64).eval(), list[int]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel()))
    one = SamplingConfig(temperature=0.9, max_tokens=1)
    system = [3 + number % 50 for number in range(30)]
    engine = Engine(model, config=EngineConfig(keep=4))
    for seed in range(5):
        engine.submit(system, one, seed)
    first = run(engine)
    assert seen == [30]
    assert len({ids(events)[0] for events in first.values()}) > 1, "each draws for itself"
    engine.submit([*system, 1, 2], one, 0)
    engine.submit([*system, 2], one, 0)
    later = run(engine)
    assert seen == [30, 4], "two rows of at most two tokens"
    for row, prompt in ((5, [*system, 1, 2]), (6, [*system, 2])):
        assert ids(later[row]) == naive(model, prompt, one, seed=0)


def test_equal_prompts_are_kept_once(make: Make) -> None:
    engine = Engine(make(context=64).eval(), config=EngineConfig(keep=3))
    one, prompts = SamplingConfig(max_tokens=1), [[3 + (start + place) % 50 for place in range(20)] for start in (0, 9)]
    for prompt in (*prompts, *[prompts[1]] * 4):
        engine.submit(prompt, one)
        run(engine)
    assert [prompt for prompt, _ in engine.prefix_cache.entries] == prompts


def test_a_queue_is_bounded(make: Make) -> None:
    engine = Engine(make(), config=EngineConfig(rows=1, queue=2))
    greedy = SamplingConfig(temperature=0, max_tokens=2)
    for _ in range(2):
        engine.submit([1], greedy)
    with pytest.raises(QueueFull, match="2 texts are waiting"):
        engine.submit([1], greedy)
    engine.step()
    assert engine.submit([1], greedy) == 2
    assert len(run(engine)) == 3


def test_rows_that_grow_count_towards_the_limit(make: Make) -> None:
    engine = Engine(make(), config=EngineConfig(rows=3))
    for number, tokens in enumerate((4, 2, 4, 4)):
        engine.submit([1 + number], SamplingConfig(temperature=0, max_tokens=tokens))
        if number == 1:
            engine.step()
    seen = []
    for _ in range(3):
        engine.step()
        seen.append(sorted(row.number for row in engine.active))
    assert seen == [[0, 2], [0, 2, 3], [2, 3]], "the last one waits for the second to end"


def test_as_many_samplings_are_kept_as_may_be(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their seeds and lengths, of which no number is kept."""
    monkeypatch.setattr("heddle.generate.engine.MAX_RULES", 2)
    engine, counts = Engine(make().eval()), []
    for seed, temperature in enumerate((0.5, 0.5, 0.6, 0.7, 0.7)):
        engine.submit([1], SamplingConfig(temperature=temperature, seed=seed, max_tokens=1 + seed))
        counts.append(len(engine.rules))
    assert counts == [1, 1, 2, 1, 1]
    assert [len(events) for events in run(engine).values()] == [1, 2, 3, 4, 5]


def test_a_broken_row_ends_alone(make: Make) -> None:
    """The embedding of one id is NaN, so rows that read it are broken, and no other."""
    model = make().eval()
    with torch.no_grad():
        model.embedding.weight[7] = torch.nan
    greedy = SamplingConfig(temperature=0, max_tokens=3, banned=((7,),))
    engine = Engine(make_head_apart(model))
    for prompt in ([1, 2], [1, 7], [3]):
        engine.submit(prompt, greedy)
    result = run(engine)
    assert [events[-1].finish for events in result.values()] == ["length", "broken", "length"]
    assert "NaN" in (result[1][0].error or "")
    everything = SamplingConfig(max_tokens=4, no_repeat_ngram=1)
    engine = Engine(make(vocab_size=3).eval())
    engine.submit([0, 1], everything)
    assert [event.finish for event in run(engine)[0]] == [None, "broken"]


def test_the_states_of_a_broken_prompt_are_not_kept(make: Make) -> None:
    """A text that begins alike would read them, and break as well."""
    model = make_head_apart(make(context=64).eval())
    engine = Engine(model, config=EngineConfig(keep=2))
    greedy = SamplingConfig(temperature=0, max_tokens=3, banned=((7,),))
    prefix = [3 + place % 4 for place in range(20)]
    engine.submit([*prefix, 1, 7], greedy)
    assert run(engine)[0][0].finish == "broken"
    engine.submit([*prefix, 9], greedy)
    assert [event.finish for event in run(engine)[1]] == [None, None, "length"]


def test_what_no_step_could_draw_is_refused_before(make: Make) -> None:
    engine = Engine(make())
    with pytest.raises(HeddleError, match="a constrained text needs the tokenizer"):
        engine.submit([1], SamplingConfig(regex="a"))
    with pytest.raises(HeddleError, match="seed"):
        engine.submit([1], SamplingConfig(), seed=-1)
    assert not engine
    with pytest.raises(HeddleError, match="presence_penalty"):
        SamplingConfig(presence_penalty=-1e39)
    with pytest.raises(HeddleError, match="logit_bias"):
        SamplingConfig.of({"logit_bias": {5: 1e39}})


def test_small_penalties_count_in_bf16(make: Make) -> None:
    """A naive loop, a stream and an engine process the same scores, which are wider than the model's."""
    model = make(vocab_size=40).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(40)
    model = model.to(torch.bfloat16)
    ids = model.logits(model(torch.tensor([[1]])).hidden[:, -1]).float()[0].topk(2)
    gap = (ids.values[0] - ids.values[1]).item()
    sampling = SamplingConfig.of(
        {"temperature": 0, "max_tokens": 1, "logit_bias": {ids.indices[1].item(): gap + 0.01 + gap / 1000}}
    )
    engine = Engine(model)
    engine.submit([1], sampling)
    assert [event.token for event in run(engine)[0]] == naive(model, [1], sampling) == [ids.indices[1].item()]


def make_head_apart(model: Transformer) -> Transformer:
    """The model with a head of its own, so that a broken embedding does not break all logits."""
    apart = build(model.config.override({"head": {"tied": False}}), seed=0).eval()
    with torch.no_grad():
        apart.embedding.weight[7] = torch.nan
    return apart


def test_echo_is_the_log_probability_of_every_token_of_the_prompt(make: Make) -> None:
    model = make(context=64).eval()
    prompts = [[5, 9, 2, 33, 4, 4, 17], [1], [5, 9, 2, 33, 4, 4, 17], list(range(2, 40))]
    engine = Engine(model, config=EngineConfig(chunk=10, keep=2))
    for number, prompt in enumerate(prompts):
        sampling = SamplingConfig(temperature=0, max_tokens=2, logprobs=number)
        engine.submit(prompt, sampling, echo=number != 2)
    events = run(engine)
    for number, prompt in enumerate(prompts):
        logs = model.logits(model(torch.tensor([prompt])).hidden[0]).float().log_softmax(-1)
        first, *rest = events[number]
        assert all(not event.prompt for event in rest)
        echoed = first.prompt if number != 2 else ()
        assert [each.token for each in echoed] == (prompt[1:] if number != 2 else [])
        for place, each in enumerate(echoed):
            assert each.logprob == pytest.approx(logs[place, each.token].item(), abs=1e-4)
            best = logs[place].topk(number) if number else None
            assert [id for id, _ in each.top] == ([] if best is None else best.indices.tolist())
        assert first.logprob == max((score for _, score in first.top), default=first.logprob), "greedy"


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_guesses_change_no_token(make: Make, data: st.DataObject) -> None:
    """Whoever guesses: an earlier text, another model, the model itself; greedy or sampled, beside rows that come and go."""
    model, other = (make(context=CONTEXT, seed=seed).eval() for seed in (1, 2))
    draft_source = data.draw(
        st.sampled_from([PromptLookup(count=4, shortest=1), DraftModel(other, 3), DraftModel(model, 2)])
    )
    limits = data.draw(st.sampled_from(LIMITS))
    engine, requests, texts = (
        Engine(model, 0, config=limits, draft_source=draft_source),
        list[Any](),
        dict[int, list[int]](),
    )
    for _ in range(5):
        prompt = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
        requests.append((prompt, data.draw(st.sampled_from(SAMPLINGS))))
        engine.submit(*requests[-1], seed=len(requests))
        for event in engine.step():
            texts.setdefault(event.row, []).append(event.token)
    for row, events in run(engine).items():
        texts.setdefault(row, []).extend(ids(events))
    with unchecked():
        for row, (prompt, sampling) in enumerate(requests):
            assert texts[row] == naive(model, prompt, sampling, 0, seed=row + 1)


def test_right_guesses_save_passes(make: Make) -> None:
    model, passes = make(context=64).eval(), list[int]()
    model.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape[1]))
    greedy = SamplingConfig(temperature=0, max_tokens=21)
    engine = Engine(model, draft_source=DraftModel(make(context=64).eval(), 4))
    engine.submit([1, 2, 3], greedy)
    assert len(run(engine)[0]) == 21
    assert passes == [3, 5, 5, 5, 5], "one token after the prompt, then five in each pass"


@pytest.mark.thorough
def test_guessed_samples_have_the_models_distribution(make: Make) -> None:
    """Chi-square over the second and third tokens of 6,000 texts, which a draft model guessed."""
    model, draft = (make(vocab_size=5, context=CONTEXT, seed=seed).eval() for seed in (1, 2))
    engine, sampling = Engine(model, draft_source=DraftModel(draft, 2)), SamplingConfig(max_tokens=3, temperature=0.8)
    for seed in range(TEXTS):
        engine.submit([1, 2], sampling, seed)
    counts = torch.zeros(5, 5, 5)
    for events in run(engine).values():
        counts[tuple(ids(events))] += 1
    with torch.inference_mode():
        texts = torch.cartesian_prod(*[torch.arange(5)] * 3)
        rows = torch.cat((torch.tensor([[1, 2]]).expand(125, -1), texts), 1)
        logs = (model.logits(model(rows).hidden).double() / 0.8).log_softmax(-1)
        probabilities = logs[:, 1:4].gather(-1, texts[:, :, None])[:, :, 0].sum(1).exp()
    many = probabilities * TEXTS >= 5
    seen = torch.cat((counts.flatten()[many], counts.flatten()[~many].sum()[None])).numpy()
    expected = torch.cat((probabilities[many], probabilities[~many].sum()[None])).numpy() * TEXTS
    assert chisquare(seen, expected).pvalue > 0.001


@pytest.mark.parametrize("config", [config for config in COMBINATIONS if cannot_take_back(config)][:2], ids=name_of)
def test_guesses_need_a_model_that_can_take_tokens_back(config: Any) -> None:
    with pytest.raises(HeddleError, match="windows or recurrent"):
        Engine(tiny(config), draft_source=PromptLookup())


def test_a_draft_of_another_vocabulary_is_refused(make: Make) -> None:
    engine = Engine(make(vocab_size=61).eval(), draft_source=DraftModel(make(vocab_size=60).eval()))
    engine.submit([1, 2], SamplingConfig())
    with pytest.raises(HeddleError, match="60 ids, the model 61"):
        run(engine)
