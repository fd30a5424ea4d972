"""The token loop and the engine: a row draws what the model predicts, whatever the other rows are."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from heddle.config import SamplingConfig, SpecialIds
from heddle.errors import HeddleError
from heddle.generate import Engine, Event, generate, stream
from heddle.generate.naive import naive
from heddle.model import Transformer, build
from heddle.model.linear import Choosing
from heddle.native.library import library
from heddle.nn import Layout
from tests.running import unchecked

Make = Callable[..., Transformer]
PROMPTS = [[5, 9, 2, 40, 7, 7, 31], [60], [1, 2, 3], list(range(20, 33))]
GREEDY = SamplingConfig(max_tokens=20, temperature=0)
MODELS = [("rotary", None), ("rotary", 2), ("learned", None), ("learned", 1)]


def by_row(events: Sequence[Event], rows: int) -> list[list[Event]]:
    return [[event for event in events if event.row == row] for row in range(rows)]


def tokens(events: Sequence[Event]) -> list[int]:
    return [event.token for event in events]


@torch.no_grad()
def logprobs_after(model: Transformer, text: list[int]) -> torch.Tensor:
    """The whole model over the whole text, without any cache."""
    with unchecked():
        return model.logits(model(torch.tensor([text])).hidden)[0, -1].double().log_softmax(-1)


@pytest.mark.lecture("L2-08", "L0-74")
@pytest.mark.parametrize(("positions", "kv_heads"), MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_cached_is_uncached(
    make: Make, positions: str, kv_heads: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    model = make(positions=positions, kv_heads=kv_heads, dtype=dtype)
    for prompt, events in zip(PROMPTS, by_row(list(generate(model, PROMPTS, GREEDY)), 4), strict=True):
        text = list(prompt)
        for event in events:
            expected = logprobs_after(model, text)
            assert event.token == expected.argmax().item()
            assert event.logprob == pytest.approx(expected.max().item(), abs=tolerance)
            text.append(event.token)
        assert len(events) == 20


@pytest.mark.lecture("L3-03")
@pytest.mark.parametrize("sampling", [{"seed": 4}, {"temperature": 0.5, "top_k": 5, "top_p": 0.9}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 3e-14)])
def test_teacher_forcing_agrees_with_generation(
    make: Make, sampling: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    model = make(dropout=0.3, dtype=dtype)
    prompt = PROMPTS[0]
    events = list(generate(model, [prompt], SamplingConfig(max_tokens=40, **sampling)))
    text = torch.tensor([prompt + tokens(events)])
    with torch.no_grad():
        logits = model.eval().logits(model(text[:, :-1]).hidden)[0, len(prompt) - 1 :]
    forced = logits.double().log_softmax(-1).gather(-1, text[0, len(prompt) :, None]).sum().item()
    assert abs(sum(event.logprob for event in events) - forced) < tolerance * len(events)


@pytest.mark.lecture("L0-74")
def test_the_lectures_own_model(tiny_lm: tuple[Transformer, dict[str, Any]]) -> None:
    model, case = tiny_lm
    ids, outputs = case["inputs"]["ids"], case["outputs"]
    prompts = [ids[: end + 1] for end in range(len(ids))]
    events = list(generate(model, prompts, SamplingConfig(max_tokens=1, temperature=0)))
    assert tokens(events) == outputs["argmax"]
    for event, probabilities in zip(events, outputs["probs"], strict=True):
        assert torch.tensor(event.logprob).exp().item() == pytest.approx(max(probabilities), abs=1e-6)


@pytest.mark.parametrize(("positions", "kv_heads"), MODELS)
def test_rows_together_are_rows_alone(make: Make, positions: str, kv_heads: int | None) -> None:
    """Also where rows end at different times."""
    model = make(positions=positions, kv_heads=kv_heads, dtype=torch.float64)
    sampling = SamplingConfig(max_tokens=60, temperature=2.0)
    end = list(generate(model, PROMPTS[:1], sampling, seeds=[3]))[9].token
    lengths = same_alone(model, sampling, [3, 3, 0, 12], end)
    assert lengths[0] <= 10 < max(lengths)


def test_windows_begin_again_at_different_times(make: Make) -> None:
    """A row that begins again joins rows with more room in the cache."""
    sampling = SamplingConfig(max_tokens=100, temperature=2.0, window=True)
    assert same_alone(make(context=72, dtype=torch.float64), sampling, [3, 3, 0, 12], None) == [100] * 4


def same_alone(model: Transformer, sampling: SamplingConfig, seeds: list[int], end: int | None) -> list[int]:
    """Checks that rows together are rows alone; how many tokens each has."""
    together = by_row(list(generate(model, PROMPTS, sampling, end, seeds)), 4)
    for prompt, seed, events in zip(PROMPTS, seeds, together, strict=True):
        alone = list(generate(model, [prompt], sampling.override({"seed": seed}), end))
        assert tokens(events) == tokens(alone)
        assert [event.finish for event in events] == [event.finish for event in alone]
        assert [event.logprob for event in events] == pytest.approx([event.logprob for event in alone], abs=1e-10)
    return list(map(len, together))


def test_events_come_step_by_step_in_the_order_of_rows(make: Make) -> None:
    sampling = SamplingConfig(max_tokens=40, temperature=0, window=True)
    events = list(generate(make(context=16), PROMPTS, sampling))
    assert [event.row for event in events] == [0, 1, 2, 3] * 40
    assert [event.finish for event in events] == [None] * 39 * 4 + ["length"] * 4


def test_a_seed_decides(make: Make) -> None:
    model = make()
    first, again, other = (
        list(stream(model, [1, 2], SamplingConfig(max_tokens=30, temperature=3.0, seed=seed))) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_equal_prompts_differ_by_their_seeds(make: Make) -> None:
    events = list(generate(make(), [[1, 2]] * 3, SamplingConfig(max_tokens=30, temperature=3.0), seeds=[1, 2, 1]))
    first, second, third = map(tokens, by_row(events, 3))
    assert first == third != second


def test_a_text_cut_anywhere_goes_on_as_it_would_have(make: Make) -> None:
    model = make(dtype=torch.float64)
    whole = list(stream(model, [1, 2], SamplingConfig(max_tokens=30, temperature=2.0, seed=5)))
    rest = list(stream(model, [1, 2, *whole[:12]], SamplingConfig(max_tokens=10, temperature=2.0, seed=5)))
    assert whole[12:22] == rest


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("prompt", [[1, 2], [5] * 14], ids=len)
def test_one_text_is_the_engines_row(make: Make, prompt: list[int], temperature: float, window: bool) -> None:
    """The plain loop and the engine draw the same tokens, past a full context and up to the end of text."""
    model = make(context=16, dtype=torch.float64)
    sampling = SamplingConfig(max_tokens=30, temperature=temperature, seed=3, window=window)
    whole = list(stream(model, prompt, sampling))
    assert whole == tokens(list(generate(model, [prompt], sampling)))
    assert len(whole) == (30 if window else 17 - len(prompt))
    end = whole[-1]
    assert list(stream(model, prompt, sampling, end)) == whole[: whole.index(end)]


def test_the_end_of_text_ends_and_is_not_streamed(make: Make) -> None:
    model = make()
    whole = list(stream(model, [1, 2], GREEDY))
    end = whole[6]
    events = list(generate(model, [[1, 2]], GREEDY, end_of_text=end))
    assert tokens(events) == whole[: whole.index(end) + 1]
    assert [event.finish for event in events] == [None] * whole.index(end) + ["end"]
    assert list(stream(model, [1, 2], GREEDY, end_of_text=end)) == whole[: whole.index(end)]


def test_an_empty_prompt_begins_with_the_end_of_text(make: Make) -> None:
    model = make()
    assert list(stream(model, [], GREEDY, end_of_text=60)) == list(stream(model, [60], GREEDY, end_of_text=60))
    with pytest.raises(HeddleError, match="prompt 1 is empty"):
        Engine.of(model, [[1], []], GREEDY)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_full_context_ends_the_text(make: Make, positions: str) -> None:
    model = make(positions=positions, context=16)
    for length in (1, 15, 16):
        events = list(generate(model, [[3] * length], SamplingConfig(max_tokens=100)))
        assert len(events) == 17 - length  # the last one is drawn after all 16 positions
        assert [event.finish for event in events] == [None] * (16 - length) + ["context"]
    assert list(generate(model, [[3] * 10], SamplingConfig(max_tokens=7)))[-1].finish == "length"
    with pytest.raises(HeddleError, match=r"prompt 0 has 17 tokens, but the model's context is 16; .*window"):
        Engine.of(model, [[3] * 17], SamplingConfig())


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_window_goes_on_from_the_last_tokens(make: Make, positions: str) -> None:
    """A prompt is cut to the context; a full context goes on from its last half, then fills again."""
    model = make(positions=positions, context=16, dtype=torch.float64)
    prompt = list(range(25))
    events = list(generate(model, [prompt], SamplingConfig(max_tokens=30, temperature=0, window=True)))
    text, start = list(prompt), 25 - 16
    for event in events:
        assert event.logprob == pytest.approx(logprobs_after(model, text[start:]).max().item(), abs=1e-10)
        text.append(event.token)
        if len(text) - start > 16:
            start = len(text) - 8
    assert len(events) == 30
    assert events[-1].finish == "length"


def test_a_prefix_model_reads_its_prompt_and_what_a_window_keeps_as_prefixes(make: Make) -> None:
    """Rows that restart at different steps, each as one pass whose prefix is what its last start read."""
    causal = make(context=16, dtype=torch.float64)
    model = build(causal.config.override({"decoder.prefix": True}), dtype=torch.float64)
    model.load_state_dict(causal.state_dict())
    model.eval()
    for prompt, events in zip(
        PROMPTS, by_row(list(generate(model, PROMPTS, GREEDY.override({"window": True}))), 4), strict=True
    ):
        text, start, prefix = list(prompt), 0, len(prompt)
        for event in events:
            read = torch.tensor([text[start:]])
            with torch.no_grad():
                hidden = model(read, Layout.whole(*read.shape).prefixed(torch.tensor([[prefix]]))).hidden
            expected = model.logits(hidden)[0, -1].log_softmax(-1)
            assert event.token == expected.argmax().item()
            assert event.logprob == pytest.approx(expected.max().item(), abs=1e-12)
            text.append(event.token)
            if len(text) - start > 16:
                start, prefix = len(text) - 8, 8
        assert start > 0
        assert text[len(prompt) :] == list(stream(model, prompt, GREEDY.override({"window": True})))


def test_one_token_contexts_can_be_windowed(make: Make) -> None:
    assert len(list(stream(make(context=1), [3], SamplingConfig(max_tokens=5, window=True)))) == 5


def test_one_token(make: Make) -> None:
    (event,) = generate(make(), [[4, 5]], SamplingConfig(max_tokens=1, temperature=0))
    assert event.finish == "length"
    assert event.token == logprobs_after(make(), [4, 5]).argmax().item()


def test_no_prompts_no_events(make: Make) -> None:
    assert list(generate(make(), [], GREEDY)) == []


@pytest.mark.parametrize("wrong", [61, 63, -1])
def test_unknown_ids_are_refused(make: Make, wrong: int) -> None:
    with pytest.raises(HeddleError, match=f"prompt 1 has the id {wrong}; ids must be from 0 to 60"):
        Engine.of(make(), [[1], [1, wrong]], GREEDY)


def test_seeds_are_one_for_each_prompt(make: Make) -> None:
    with pytest.raises(HeddleError, match="1 seeds for 2 prompts"):
        Engine.of(make(), [[1], [2]], GREEDY, seeds=[1])


def test_ids_beyond_the_vocabulary_are_never_drawn(make: Make) -> None:
    sampling = SamplingConfig(max_tokens=60, temperature=1e6)
    events = list(generate(make(), [[1]] * 8, sampling, seeds=range(8)))
    assert max(tokens(events)) <= 60


def with_ids(model: Transformer, **ids: Any) -> Transformer:
    """The same model, as if it had been imported with these special ids."""
    model.config = model.config.override({"ids": SpecialIds(**ids).to_dict()})
    return model


def test_an_imported_model_ends_at_each_of_its_ends(make: Make) -> None:
    whole = list(stream(make(), [1, 2], GREEDY))
    first, second = whole[4], next(token for token in whole[2:4] if token != whole[4])
    for ends in (first, (first,), (60, first), (first, second), (second, first)):
        events = list(generate(with_ids(make(), end=ends), [[1, 2]], GREEDY))
        place = min(whole.index(end) for end in (ends if isinstance(ends, tuple) else (ends,)) if end in whole)
        assert tokens(events) == whole[: place + 1]
        assert (events[-1].token, events[-1].finish) == (whole[place], "end")
    assert list(stream(with_ids(make()), [1, 2], GREEDY)) == whole  # it has none
    both = list(generate(with_ids(make(), end=first), [[1, 2]], GREEDY, end_of_text=second))
    assert both[-1].token in (first, second)
    assert len(both) == min(whole.index(first), whole.index(second)) + 1


def test_an_imported_model_begins_with_its_own_id(make: Make) -> None:
    assert list(stream(with_ids(make(), begin=7), [], GREEDY)) == list(stream(make(), [7], GREEDY))
    assert list(stream(with_ids(make(), begin=7), [], GREEDY, end_of_text=60)) == list(stream(make(), [7], GREEDY, 60))
    with pytest.raises(HeddleError, match="prompt 0 is empty"):
        Engine.of(with_ids(make(), end=7), [[]], GREEDY)


def test_ids_without_text_are_never_drawn(make: Make) -> None:
    sampling = SamplingConfig(max_tokens=60, temperature=1e6)
    model = with_ids(make(), end=58)
    engine = Engine.of(model, [[1]] * 8, sampling, seeds=range(8), vocabulary=40)
    drawn = []
    while engine:
        drawn += engine.step()
    assert {token for token in tokens(drawn) if token >= 40} == {58}  # what ends a text needs none
    assert all(event.finish == "end" for event in drawn if event.token == 58)
    with pytest.raises(HeddleError, match="nothing can be sampled"):
        Engine.of(make(), [[1]], sampling, vocabulary=0)


def test_banned_ids_are_never_drawn_and_runs_of_them_never_completed(make: Make) -> None:
    whole = list(stream(make(), [1, 2], GREEDY))
    one = list(stream(with_ids(make(), banned=((whole[3],),)), [1, 2], GREEDY))
    assert one[:3] == whole[:3]
    assert whole[3] not in one
    run = tuple(whole[2:5])
    several = list(stream(with_ids(make(), banned=(run,)), [1, 2], GREEDY))
    assert several[:4] == whole[:4]
    assert several[4] != whole[4]
    assert all(tuple(several[place : place + 3]) != run for place in range(len(several)))
    first = list(stream(with_ids(make(), banned=((2, whole[0]),)), [1, 2], GREEDY))
    assert first[0] != whole[0]  # a prompt's tokens count, too
    ended = list(generate(with_ids(make(), banned=((whole[3],),), end=whole[3]), [[1, 2]], GREEDY))
    assert ended[-1].finish == "end"  # an end is no word, as in transformers


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {}, {"temperature": 0.5, "top_k": 3, "top_p": 0.5}])
def test_broken_weights_are_named(make: Make, value: float, sampling: dict[str, Any]) -> None:
    model = make()
    with torch.no_grad():
        model.decoder.final_norm.weight[3] = value
    with pytest.raises(HeddleError, match=r"^the model's output is NaN or infinite"):
        list(stream(model, [3], SamplingConfig(**sampling)))


def test_the_model_is_left_as_it_was(make: Make) -> None:
    model = make(dropout=0.5).train()
    model.decoder.blocks[0].eval()
    before = [module.training for module in model.modules()]
    events = generate(model, [[1, 2]], GREEDY)
    drawn = [next(events)]
    assert [module.training for module in model.modules()] == before
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    drawn += events
    assert tokens(drawn) == list(stream(make(), [1, 2], GREEDY))  # dropout was off
    model(torch.tensor([[1, 2]])).hidden.sum().backward()  # and the weights can still be trained
    assert model.embedding.weight.grad is not None


def test_rows_can_be_ended_from_outside(make: Make) -> None:
    engine = Engine.of(make(), PROMPTS, GREEDY)
    engine.leave({1})
    first = engine.step()
    engine.leave({0, 3})
    rest = []
    while engine:
        rest += engine.step()
    assert [event.row for event in first] == [0, 2, 3]
    assert {event.row for event in rest} == {2}
    assert [*tokens(first)[1:2], *tokens(rest)] == list(stream(make(), PROMPTS[2], GREEDY))


def choosing(model: Transformer) -> list[Choosing]:
    return [module for module in model.modules() if isinstance(module, Choosing) and module.few_rows]


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("positions", "kv_heads"), MODELS)
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 2.0, "seed": 4}, {"top_k": 5, "top_p": 0.9}])
def test_products_of_few_rows_write_the_same(
    make: Make, positions: str, kv_heads: int | None, sampling: dict[str, Any]
) -> None:
    config = SamplingConfig(max_tokens=40, **sampling)
    plain, few = make(positions, kv_heads).train(), make(positions, kv_heads).eval()
    expected = by_row(list(generate(plain, PROMPTS, config)), 4)  # in training mode torch multiplies
    texts = by_row(list(generate(few, PROMPTS, config)), 4)
    assert not choosing(plain)
    assert choosing(few)
    for one, other in zip(expected, texts, strict=True):
        assert tokens(one) == tokens(other)
        assert [event.logprob for event in one] == pytest.approx([event.logprob for event in other], abs=2e-5)


def test_training_between_two_steps_of_a_loop_is_seen(make: Make) -> None:
    """The engine is over a model, not over a copy of what it was."""
    model, twin = make().eval(), make().train()
    texts = []
    for each in (model, twin):
        engine = Engine.of(each, [[1, 2, 3]], SamplingConfig(max_tokens=40, temperature=0))
        events = [engine.step()[0] for _ in range(5)]
        mode = each.training
        each.train().logits(each(torch.tensor([[1, 2, 3]])).hidden).logsumexp(-1).sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
        each.train(mode)
        texts.append(events + [engine.step()[0] for _ in range(10)])
    assert tokens(texts[0]) == tokens(texts[1])
    assert [event.logprob for event in texts[0]] == pytest.approx([event.logprob for event in texts[1]], abs=1e-4)


class Halved(torch.nn.Module):
    """Somebody's wrapper around a mixer: it knows nothing of states, and hands on what it is given."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **named: Any) -> torch.Tensor:
        return self.inner(*args, **named) / 2


class Forgetful(torch.nn.Module):
    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        return x


def test_a_wrapped_mixer_generates(make: Make) -> None:
    model = make(dtype=torch.float64)
    plain = [event.token for event in generate(model, PROMPTS[:1], GREEDY)]
    assert model.decoder is not None
    for block in model.decoder.layers():
        block.mixer = Halved(block.mixer)
    ids = [event.token for event in generate(model, PROMPTS[:1], GREEDY)]
    assert ids == naive(model, PROMPTS[0], GREEDY)
    assert ids != plain
    model.decoder.blocks[0].mixer = Forgetful()
    with pytest.raises(HeddleError, match="a Forgetful replaces a mixer but has no new_state"):
        next(iter(generate(model, PROMPTS[:1], GREEDY)))
