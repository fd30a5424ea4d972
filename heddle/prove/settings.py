"""Check decoding settings: generated text follows each setting's formula, applied to the logits of one pass."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.config.decoding import SamplingConfig
from heddle.config.model import LanguageHeadConfig
from heddle.generate.engine import Engine
from heddle.prove.caches import banned, forced_ids
from heddle.prove.subject import Subject
from heddle.prove.verdict import Comparison, NotApplicable

TOKENS = 6  # of each text
PROMPT = 3
BIAS_FACTOR = 8.0  # times the largest logit, so that the biased id is the best at every step
# Each setting is tested together with the bias, which makes text likely to hit it; "B" stands for the bias, "id" for its id.
SETTINGS: dict[str, dict[str, Any]] = {
    "logit_bias": {},
    "repetition_penalty": {"repetition_penalty": 64.0},
    "presence_penalty": {"presence_penalty": ("B", 2.0)},
    "small presence_penalty": {"presence_penalty": ("B", 0.3)},
    "frequency_penalty": {"frequency_penalty": ("B", 0.6)},
    "no_repeat_ngram": {"no_repeat_ngram": 2},
    "banned": {"banned": (("id",),)},
    "banned run": {"banned": (("id", "id"),)},
    "min_tokens": {"min_tokens": PROMPT},
}


@dataclass(frozen=True)
class TestCase:
    """A prompt under one setting.

    Attributes:
        config: the setting, with the bias.
        prompt: ids to continue.
        ends: ids that end the text.
        longest: maximum length, including the prompt.
    """

    config: SamplingConfig
    prompt: list[int]
    ends: frozenset[int]
    longest: int


def decoding_settings(subject: Subject) -> Iterator[Comparison]:
    """Greedy text picks the best ids under each setting's formula: forced and banned ids, penalties, minimum length."""
    subject.require_decoder()
    model, config = subject.model, subject.config
    if subject.is_encoder_decoder or not isinstance(config.head, LanguageHeadConfig):
        raise NotApplicable("the token loop does not sample from this model")
    ids = config.ids
    special = set() if ids is None else ids.every()
    ordinary = [id for id in range(config.vocab_size) if id not in special]
    if len(ordinary) <= PROMPT + TOKENS:  # with fewer ids, a setting may ban them all
        raise NotApplicable("the vocabulary is too small to ban ids")
    prompt = subject.tokens(1, max(1, min(PROMPT, config.context - TOKENS)))[0].tolist()
    # Not in the prompt, so that only generated ids count.
    favoured = next((id for id in reversed(ordinary) if id not in prompt), ordinary[-1])
    largest = subject.full_pass(torch.tensor([prompt]))["output"][..., ordinary].abs().max()
    bias = BIAS_FACTOR * max(float(largest), 1e-3)
    for name, fields in SETTINGS.items():
        settings = _fill(fields, favoured, bias)
        sampling = SamplingConfig.of(
            {"temperature": 0.0, "max_tokens": TOKENS, "logit_bias": {favoured: bias}, **settings}
        )
        end = favoured if name == "min_tokens" else None
        engine, sampled = Engine(model, end), list[int]()
        engine.submit(prompt, sampling)
        prompt_ids = list(engine.waiting[0].ids)  # with the begin id, if the model has one
        while engine:
            sampled += [event.token for event in engine.step() if event.error is None]
        ends = frozenset({*(() if ids is None else ids.ends()), *(() if end is None else (end,))})
        test_case = TestCase(sampling, prompt_ids, ends, min(len(prompt_ids) + TOKENS, config.context + 1))
        yield from _check_text(subject, name, test_case, sampled)


def _fill(fields: dict[str, Any], favoured: int, bias: float) -> dict[str, Any]:
    """Fill the id and the bias into a setting."""

    def value(field: Any) -> Any:
        if isinstance(field, tuple) and field[0] == "B":
            return field[1] * bias
        if isinstance(field, tuple):
            return tuple(map(value, field))
        return favoured if field == "id" else field

    return {name: value(field) for name, field in fields.items()}


def _check_text(subject: Subject, name: str, test_case: TestCase, sampled: Sequence[int]) -> Iterator[Comparison]:
    """Check that the text has the expected length, and that each id is the best one."""
    expected_length = (
        len(sampled) if sampled and sampled[-1] in test_case.ends else test_case.longest - len(test_case.prompt)
    )
    actual, expected = ({"count": torch.tensor([step_scores])} for step_scores in (len(sampled), expected_length))
    yield Comparison(f"{name}: length", actual, expected, exact=True)
    if not sampled:
        return
    text = [*test_case.prompt, *sampled]
    tokens = torch.tensor([text[:-1]])
    # Generation passes no token types, so all are of type 0.
    types, layout = (
        subject.types(torch.zeros_like(tokens)),
        subject.prompt_layout([len(test_case.prompt)], tokens.shape[1]),
    )
    scores = subject.full_pass(tokens, layout, types=types)["output"][0, len(test_case.prompt) - 1 :]
    processed_scores = torch.stack(
        [
            process_scores(subject, step_scores, text[: len(test_case.prompt) + step], test_case)
            for step, step_scores in enumerate(scores)
        ]
    )
    sampled_scores = processed_scores.gather(-1, torch.tensor(sampled)[:, None])
    yield Comparison(name, {"output": sampled_scores[None]}, {"output": processed_scores.amax(-1, keepdim=True)[None]})


def process_scores(subject: Subject, scores: Tensor, text: Sequence[int], test_case: TestCase) -> Tensor:
    """Float[V], the logits of the next id after a text, processed by the formulas."""
    result, config, special = scores.clone(), test_case.config, subject.config.ids
    generated = Counter(text[len(test_case.prompt) :])
    for id, bias in config.logit_bias:
        result[id] += bias
    for id in set(text):
        result[id] = (
            result[id] / config.repetition_penalty if result[id] > 0 else result[id] * config.repetition_penalty
        )
    for id, count in generated.items():
        result[id] -= config.presence_penalty + config.frequency_penalty * count
    if config.no_repeat_ngram is not None:
        context = config.no_repeat_ngram - 1
        tail = list(text[len(text) - context :])
        runs = [list(text[start : start + context]) for start in range(len(text) - context)]
        result[[text[start + context] for start, run in enumerate(runs) if run == tail]] = -torch.inf
    result[banned(special, text)] = -torch.inf
    result[[run[-1] for run in config.banned if tuple(text[len(text) - len(run) + 1 :]) == run[:-1]]] = -torch.inf
    if sum(generated.values()) < config.min_tokens:
        result[sorted(test_case.ends)] = -torch.inf
    if forced := forced_ids(special, len(text), last=len(text) + 1 == test_case.longest):
        result[:] = -torch.inf
        result[forced] = 0.0
    return result
