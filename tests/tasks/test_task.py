"""The task seam: what next-token prediction says of its examples, and a task of one's own that nothing else knows."""

from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import NextTokenConfig, RunConfig, sized
from heddle.config.train import TrainConfig
from heddle.data.corpus import Corpus, Part
from heddle.data.order import windows
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.tasks import DataSpec, Task, make_task
from heddle.tasks.table import TASKS
from heddle.text import train_tokenizer
from heddle.train import Optimizer, evaluate, train_step
from tests.fences import ROOT, fences
from tests.running import unchecked

MODEL = sized(1, vocab_size=41, context=8, dim=16)
COPYING = sized(1, vocab_size=9, context=8, dim=32)


def shown() -> dict[str, Any]:
    """What the page about adding defines for a task that copies its input: a config, a class and a row in TASKS."""
    names: dict[str, Any] = {}
    blocks = fences((ROOT / "docs/internals/adding.md").read_text(encoding="utf-8"))
    exec(next(fence.body for fence in blocks if "class CopyConfig" in fence.body), names)
    return names


PAGE = shown()
Copy: Any = PAGE["Copy"]
CopyConfig: Any = PAGE["CopyConfig"]


class Chances(Copy):
    """The page's task, and a number of its own."""

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        return {"chance": float(np.exp(-means["loss"]))}


def text(length: int, start: int = 0) -> Part:
    return Part(np.arange(start, start + length, dtype=np.uint16) % 41, length, 1, 1)


def next_token(corpus: Corpus, rows: int = 3, seed: int = 5) -> Task:
    return make_task(NextTokenConfig(), DataSpec(corpus, MODEL, rows, seed))


def test_every_step_reads_the_windows_of_its_seed() -> None:
    """Wherever one begins, so that a step can be taken again."""
    task = next_token(Corpus(text(200)))
    for step in (4, 0):
        examples = task.examples(step)
        assert examples.places.tolist() == windows(200, 8, 5, step, 3).tolist()
        batch = task.batch(examples)
        for row, start in enumerate(examples.places):
            assert batch.tokens[row].tolist() == [(start + place) % 41 for place in range(8)]
            assert batch.targets[row].tolist() == [(start + place) % 41 for place in range(1, 9)]
    assert task.describe(examples) == f"windows that start at training tokens {', '.join(map(str, examples.places))}"


@pytest.mark.parametrize("length", [2, 8, 9, 17, 30])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_what_is_held_out_is_scored_once(length: int, rows: int) -> None:
    """In batches of equal windows; the last may be shorter."""
    task = next_token(Corpus(validation=text(length)))
    chosen = task.held_out(rows)
    batches = [task.batch(examples) for examples in chosen.batches]
    assert all(len(batch.tokens) <= rows for batch in batches)
    assert torch.cat([batch.targets.flatten() for batch in batches]).tolist() == [
        each % 41 for each in range(1, length)
    ]
    assert chosen.share == 1


def test_a_text_shorter_than_a_window_is_refused() -> None:
    line = "context = 8, but training has 8 tokens and validation 30: set context=7 or less, or give more text"
    with pytest.raises(HeddleError, match=line):
        next_token(Corpus(text(8), text(30)))
    with pytest.raises(HeddleError, match="training has 100 tokens and validation 5: set context=4"):
        next_token(Corpus(text(100), text(5)))
    next_token(Corpus(None, text(5)))  # to be scored, in one short window


def test_what_writes_no_text_has_nothing_to_show() -> None:
    tokenizer = train_tokenizer("characters", ["ab"])
    task = Copy(CopyConfig(), DataSpec(Corpus(), COPYING))
    assert task.sample(build(MODEL), tokenizer, 0, 5) is None


def test_every_task_of_a_config_has_a_class() -> None:
    assert type(RunConfig().task) in TASKS
    assert PAGE["TASKS"] == {**TASKS, CopyConfig: Copy}
    with pytest.raises(HeddleError, match="make_task: config = a CopyConfig"):
        make_task(CopyConfig(), DataSpec(Corpus(), MODEL))


def test_a_task_of_ones_own_is_learned_and_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page says: by the step, the evaluation and the table that next-token prediction has, unchanged."""
    monkeypatch.setitem(TASKS, CopyConfig, Chances)
    task = make_task(CopyConfig(), DataSpec(Corpus(), COPYING, rows=32))
    model: Transformer = build(COPYING)
    train = TrainConfig(weight_decay=0.0, matrix_learning_rate=0.05)
    optimizer, objective = Optimizer(model, train, 1e-2, "fp32"), task.objective(model)
    before = evaluate(model, task)
    assert before.loss == pytest.approx(np.log(9), abs=0.2)
    assert (before.tokens, before.share, before.standard_error) == (64 * 4, 1.0, 0.0)
    with unchecked():
        for step in range(80):
            train_step(objective, optimizer, task.batch(task.examples(step)), 1, 1 - step / 80, 1.0)
    after = evaluate(model, task)
    assert after.metrics["chance"] > 0.9
    assert after.to_dict().keys() == {"loss", "standard_error", "chance", "tokens", "share"}
