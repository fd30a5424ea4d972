"""A tokenizer and a model for a task: the stacks, the head, the special tokens and the classes that a run would have."""

from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.config import RunConfig
from heddle.runs import Trainer, prepare
from tests import refusing

LABELLED = [(f"the {'warp' if number % 2 else 'weft'} is held {number}", "ab"[number % 2]) for number in range(24)]
DATA: dict[str, Any] = {
    "next_token": ["the warp", "the weft"],
    "masked": "the warp is held",
    "prefix_lm": "the warp is held",
    "span_corruption": "the warp is held",
    "translation": [("the warp", "weft")],
    "classification": LABELLED,
    "token_classification": [(["the", "warp"], ["O", "B"])],
    "regression": [("the warp", 0.5)],
}


@pytest.mark.parametrize("task", DATA)
def test_the_model_fits_the_task(task: str) -> None:
    """As the config of a run resolves it; the task's own checks accept the tokens and the head."""
    tokenizer = heddle.tokenizer_for(task, DATA[task], "characters")
    settings = RunConfig.of({"task": task}).task
    assert {"<|endoftext|>", *settings.special_tokens} == set(tokenizer.special)
    model = heddle.model_for(task, tokenizer, DATA[task], depth=1, context=12, dim=16)
    assert tuple(model.config.stacks()) == settings.families[0]
    assert model.config.head.kind == settings.head
    names = {"classification": ("a", "b"), "token_classification": ("B", "O")}.get(task)
    assert names is None or model.config.head.names == names
    other = settings.families[-1]
    family = heddle.model_for(task, tokenizer, DATA[task], depth=1, context=12, dim=16, family="-".join(other))
    assert tuple(family.config.stacks()) == other


def test_the_model_is_that_of_a_run(tmp_path: Path, quick: None) -> None:
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in LABELLED))
    data = {"sources": [str(tmp_path / "data.csv")], "tokenizer": "characters"}
    sizes = {"depth": 1, "dim": 16, "context": 12}
    train = {"steps": 1, "batch": 4, "precision": "fp32"}
    prepare(RunConfig.of({"data": data, "model": sizes, "task": "classification", "train": train}), tmp_path / "run")
    run = Trainer(tmp_path / "run").session.run
    tokenizer = heddle.tokenizer_for("classification", LABELLED, "characters")
    assert tokenizer.fingerprint() == run.tokenizer.fingerprint()
    assert heddle.model_for("classification", tokenizer, LABELLED, **sizes).config == run.config.model


def test_classes_must_be_known() -> None:
    tokenizer = heddle.tokenizer_for("classification", LABELLED, "characters")
    line = refusing.refusal(lambda: heddle.model_for("classification", tokenizer))
    assert line == "model_for: data = None: must be the labelled data, whose classes the head gets"
    assert heddle.model_for("regression", tokenizer, depth=1, dim=16).config.head.classes == 1
