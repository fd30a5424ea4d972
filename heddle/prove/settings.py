"""The check of the decoding settings: a text under each of them follows its formula, applied to the scores of one pass."""

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
STRONG = 8.0  # times the largest score: what makes an id the best at every step
# Each beside that bias, without which a text might never come to what a setting forbids; "B" is the bias, "id" its id.
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
class Tried:
    """A text under one setting.

    Attributes:
        config: the setting, with the bias.
        prompt: the ids that it continues.
        ends: ids that end it.
        longest: how many ids it may have.
    """

    config: SamplingConfig
    prompt: list[int]
    ends: frozenset[int]
    longest: int


def decoding_settings(subject: Subject) -> Iterator[Comparison]:
    """A greedy text has the best ids after its setting's formula: of what is forced, banned, penalised, and too short to end."""
    subject.needs_decoder()
    model, config = subject.model, subject.config
    if subject.both or not isinstance(config.head, LanguageHeadConfig):
        raise NotApplicable("the token loop does not draw from it")
    ids = config.ids
    special = set() if ids is None else ids.every()
    ordinary = [each for each in range(config.vocab_size) if each not in special]
    if len(ordinary) <= PROMPT + TOKENS:  # with fewer, a setting may leave none
        raise NotApplicable("it has too few ids to forbid some")
    prompt = subject.tokens(1, max(1, min(PROMPT, config.context - TOKENS)))[0].tolist()
    # No part of the prompt, so that it is the text's own ids that count.
    favoured = next((each for each in reversed(ordinary) if each not in prompt), ordinary[-1])
    largest = subject.whole(torch.tensor([prompt]))["output"][..., ordinary].abs().max()
    bias = STRONG * max(float(largest), 1e-3)
    for name, fields in SETTINGS.items():
        said = _filled(fields, favoured, bias)
        sampling = SamplingConfig.of({"temperature": 0.0, "max_tokens": TOKENS, "logit_bias": {favoured: bias}, **said})
        end = favoured if name == "min_tokens" else None
        engine, drawn = Engine(model, end), list[int]()
        engine.submit(prompt, sampling)
        opened = list(engine.waiting[0].sequence.ids)  # with what starts a text, where that is the model's way
        while engine:
            drawn += [event.token for event in engine.step() if event.error is None]
        ends = frozenset({*(() if ids is None else ids.ends()), *(() if end is None else (end,))})
        tried = Tried(sampling, opened, ends, min(len(opened) + TOKENS, config.context + 1))
        yield from _followed(subject, name, tried, drawn)


def _filled(fields: dict[str, Any], favoured: int, bias: float) -> dict[str, Any]:
    """A setting for this id and this bias."""

    def value(each: Any) -> Any:
        if isinstance(each, tuple) and each[0] == "B":
            return each[1] * bias
        if isinstance(each, tuple):
            return tuple(map(value, each))
        return favoured if each == "id" else each

    return {name: value(each) for name, each in fields.items()}


def _followed(subject: Subject, name: str, tried: Tried, drawn: Sequence[int]) -> Iterator[Comparison]:
    """The text is as long as it may be, and each of its ids the best one."""
    most = len(drawn) if drawn and drawn[-1] in tried.ends else tried.longest - len(tried.prompt)
    found, wanted = ({"count": torch.tensor([each])} for each in (len(drawn), most))
    yield Comparison(f"{name}: length", found, wanted, exactly=True)
    if not drawn:
        return
    text = [*tried.prompt, *drawn]
    read = torch.tensor([text[:-1]])
    # The loop says no types, so all are of the first.
    types, begun = subject.types(torch.zeros_like(read)), subject.begun([len(tried.prompt)], read.shape[1])
    scores = subject.whole(read, begun, types=types)["output"][0, len(tried.prompt) - 1 :]
    made = torch.stack(
        [processed(subject, each, text[: len(tried.prompt) + step], tried) for step, each in enumerate(scores)]
    )
    chosen = made.gather(-1, torch.tensor(drawn)[:, None])
    yield Comparison(name, {"output": chosen[None]}, {"output": made.amax(-1, keepdim=True)[None]})


def processed(subject: Subject, scores: Tensor, text: Sequence[int], tried: Tried) -> Tensor:
    """Float[V], the scores of the id after a text, by the formulas alone."""
    found, config, special = scores.clone(), tried.config, subject.config.ids
    own = Counter(text[len(tried.prompt) :])
    for each, more in config.logit_bias:
        found[each] += more
    for each in set(text):
        found[each] = (
            found[each] / config.repetition_penalty if found[each] > 0 else found[each] * config.repetition_penalty
        )
    for each, count in own.items():
        found[each] -= config.presence_penalty + config.frequency_penalty * count
    if config.no_repeat_ngram is not None:
        before = config.no_repeat_ngram - 1
        tail = list(text[len(text) - before :])
        runs = [list(text[at : at + before]) for at in range(len(text) - before)]
        found[[text[at + before] for at, run in enumerate(runs) if run == tail]] = -torch.inf
    found[banned(special, text)] = -torch.inf
    found[[run[-1] for run in config.banned if tuple(text[len(text) - len(run) + 1 :]) == run[:-1]]] = -torch.inf
    if sum(own.values()) < config.min_tokens:
        found[sorted(tried.ends)] = -torch.inf
    if forced := forced_ids(special, len(text), last=len(text) + 1 == tried.longest):
        found[:] = -torch.inf
        found[forced] = 0.0
    return found
