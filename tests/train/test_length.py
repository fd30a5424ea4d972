"""How long a training is, and what its evaluations may take: in tokens, whatever a task counts as a target."""

import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.config import RunConfig, TrainConfig
from heddle.config.tasks import ClassificationConfig, NextTokenConfig, PrefixLMConfig, TaskSettings
from heddle.data.corpus import Corpus, Part
from heddle.errors import HeddleError
from heddle.model import build
from heddle.tasks import DataSpec
from heddle.tasks.table import make_task
from heddle.tasks.task import Task, tokens_read
from heddle.train import fit
from heddle.train.length import (
    ALWAYS,
    ENDING,
    PROBING,
    SCORING,
    SMALL,
    Evaluations,
    requested_steps,
    step_size,
    steps_within,
    warmup_of,
)
from tests.tasks.labelled import TOKENIZER, model_for, records


@pytest.mark.parametrize("lengths", [("steps", "epochs"), ("epochs", "minutes"), ("minutes", "steps")])
def test_one_setting_says_how_long(lengths: tuple[str, str]) -> None:
    """Given on the command line beside one in a file too: `none` takes the file's back."""
    settings = dict.fromkeys(lengths, 7)
    with pytest.raises(HeddleError, match="all set the length of training: leave one out, or set it to none"):
        RunConfig.of({"train": settings})
    RunConfig.of({"train": {**settings, lengths[0]: "none"}})


def test_a_warmup_is_kept_or_refused() -> None:
    assert warmup_of(TrainConfig(warmup=20), 20, 0.02) == 20
    assert warmup_of(TrainConfig(warmup=0), 20, 0.02) == 0
    assert warmup_of(TrainConfig(), 20, 0.02) == 1
    assert warmup_of(TrainConfig(), 120, 0.1) == 12
    with pytest.raises(HeddleError, match="warmup = 100: the run has 20 steps; lower warmup or train longer"):
        warmup_of(TrainConfig(warmup=100), 20, 0.02)


def test_a_decay_is_kept_or_refused() -> None:
    assert warmup_of(TrainConfig(schedule="wsd", decay=0.5, warmup=10), 20, 0.02) == 10
    assert warmup_of(TrainConfig(schedule="wsd", warmup=19), 20, 0.02) == 19  # nobody asked for a fifth
    with pytest.raises(HeddleError, match=r"decay = 0.9 of all steps: the warmup of 10 steps leaves 10 of 20"):
        warmup_of(TrainConfig(schedule="wsd", decay=0.9, warmup=10), 20, 0.02)


TEXT = Part(np.arange(6000, dtype=np.uint16) % TOKENIZER.vocab_size, 6000, 1, 1)
LEARNED: dict[str, tuple[TaskSettings, Any, Any]] = {
    "tokens": (NextTokenConfig(), TEXT, TEXT),
    "prefix": (PrefixLMConfig(), TEXT, TEXT),
    "labels": (ClassificationConfig(), records("class", 400), records("class", 2000, 7)),
}


def learned(kind: str) -> Task:
    config, train, held_out = LEARNED[kind]
    corpus = Corpus(train, held_out)
    stack = "encoder" if kind == "labels" else "decoder"
    reading = DataSpec(corpus, model_for(config, corpus, stack), 8, tokenizer=TOKENIZER)
    return make_task(config, reading)


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("interval", [None, 7])
def test_evaluations_take_a_tenth_of_the_time(kind: str, interval: int | None) -> None:
    """Counted in what is really read: a label stands for a whole text, and of a prefix no token is a target."""
    task, steps = learned(kind), 3000
    evaluations = Evaluations(task, steps, interval)
    trained = steps * step_size(task).tokens

    def read(most: int) -> int:
        return sum(tokens_read(task.batch(each)) for each in task.held_out(64, most).batches)

    probes = SCORING * read(evaluations.probe) * steps / evaluations.every
    assert probes <= 1.2 * PROBING * trained
    assert SCORING * read(evaluations.ending) <= 1.2 * max(ENDING * trained, 1 << 16)
    assert evaluations.tokens() == pytest.approx(probes + SCORING * read(evaluations.ending), rel=0.2)


def test_fewer_evaluations_score_enough_to_mean_something() -> None:
    """124 steps of 8 labels: twenty evaluations would score 7 labels each."""
    task = learned("labels")
    assert Evaluations(task, 124).every == 25
    assert Evaluations(task, 124).probe < 60
    assert Evaluations(task, 4000).every > 200
    assert Evaluations(task, 60_000).every == 3000
    assert Evaluations(task, 124, 10).every == 10


def test_steps_fit_into_the_time_with_their_evaluations() -> None:
    task = learned("labels")
    for seconds in (30.0, 300.0):
        steps = steps_within(seconds, 1e3, task, None)
        needed = steps * step_size(task).tokens + Evaluations(task, steps).tokens()
        assert 0.93 * seconds < needed / 1000 < seconds


def test_epochs_are_rounded_up_to_steps() -> None:
    task = learned("labels")
    assert task.steps_per_epoch() == 50
    assert [requested_steps(TrainConfig(epochs=epochs), task) for epochs in (1, 2.5, 0.01, 1.001)] == [50, 125, 1, 51]
    assert requested_steps(TrainConfig(steps=3), task) == 3
    assert requested_steps(TrainConfig(minutes=3), task) is None


BENT: list[tuple[str, dict[str, Any], str]] = [
    ("tokens", {"batch_tokens": 15}, "batch_tokens = 15: a row has context = 16 tokens; give at least 16"),
    ("tokens", {"batch_tokens": 40, "accumulate": 3}, "accumulate = 3; give at least 48"),
    (
        "labels",
        {"batch_tokens": 60},
        "batch_tokens = 60: a step has at least 8 rows, and 8 of up to 16 tokens have 128",
    ),
    ("labels", {"warmup": 21}, "warmup = 21: the run has 20 steps"),
    ("labels", {"schedule": "wsd", "decay": 0.9, "warmup": 10}, "decay = 0.9 of all steps"),
    ("labels", {"epochs": 2}, "steps = 20 and epochs = 2 all set the length of training"),
    ("labels", {"minutes": 2}, "steps = 20 and minutes = 2 all set the length of training"),
    ("labels", {"patience": 20}, "patience = 20: the run has"),
    ("labels", {"momentum": 0.5}, "momentum = 0.5 has no effect with optimizer = muon"),
    ("labels", {"final": 0.5, "schedule": "constant"}, "final = 0.5 has no effect with schedule = constant"),
    ("labels", {"threads": 1 << 20}, "threads = 1048576: this machine has"),
    ("labels", {"batch": 6, "batch_tokens": 60}, "both set the batch size"),
]


@pytest.mark.parametrize(("kind", "settings", "line"), BENT, ids=[line for *_, line in BENT])
def test_a_setting_is_kept_or_refused(kind: str, settings: dict[str, Any], line: str) -> None:
    """By `fit`, as by a run: both ask these functions."""
    config, train, held_out = LEARNED[kind]
    stack = "encoder" if kind == "labels" else "decoder"
    model = build(model_for(config, Corpus(train, held_out), stack))
    texts = [("the weft " * 9, "cold"), ("warp " * 9, "warm")] * 20
    data = "the warp is held and the weft is thrown over " * 40 if kind == "tokens" else texts
    with pytest.raises(HeddleError, match=re.escape(line)):
        fit(model, TOKENIZER, data, 20, config, data, progress=False, **settings)


def test_epochs_that_are_whole_steps_are_not_rounded_up() -> None:
    """1.1 epochs of 50 steps are 55, although 1.1 * 50 is a little more in floating point."""
    assert 1.1 * 50 > 55
    assert requested_steps(TrainConfig(epochs=1.1), learned("labels")) == 55


def test_of_a_large_model_less_is_scored_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of what a model of up to four million parameters may read, if it has as many more."""
    module = import_module("heddle.train.length")
    monkeypatch.setattr(module, "ENDING", 0.0)
    task, budgets = learned("tokens"), list[float]()
    monkeypatch.setattr(Evaluations, "_read", lambda self, tokens: (len(budgets), budgets.append(tokens) or 1.0))
    for parameters in (1000, SMALL, 16 * SMALL):
        monkeypatch.setattr(module, "parameters", lambda model, total=parameters: SimpleNamespace(total=total))
        assert Evaluations(task, 10)._ending[1] == 1.0
    assert budgets == [ALWAYS, ALWAYS, ALWAYS / 16]


def test_steps_of_different_sizes_are_looked_at_and_equal_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records the first eight, whose mean counts; of rows of one text, the first."""
    for kind, looked in (("tokens", 1), ("labels", 8)):
        task, read = learned(kind), list[int]()
        batches = [task.batch(task.examples(step)) for step in range(8)]
        examples = task.examples
        monkeypatch.setattr(
            task, "examples", lambda step, read=read, examples=examples: (read.append(step), examples(step))[1]
        )
        size = step_size(task)
        assert read == list(range(looked))
        tokens = [tokens_read(each) for each in batches[:looked]]
        assert size.tokens == round(sum(tokens) / looked)
        assert size.targets == sum(int(each.weights.count_nonzero()) for each in batches[:looked]) / looked
