"""Tiny runs: a text of a few words, a model of a few thousand weights, nothing measured."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from heddle.account.memory import training_bytes
from heddle.config.model import TransformerConfig
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.runs import prepare
from heddle.tasks.next_token import NextTokenTask

Begin = Callable[..., Path]
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "some", "more"]
SIZES = {"dim": 16, "depth": 1, "heads": 2, "context": 16}
TRAIN = {
    "steps": 8,
    "batch": 4,
    "precision": "fp32",
    "products": "torch",
    "compile": "off",
    "threads": 1,
    "evaluate_every": 4,
}


@contextmanager
def unchecked() -> Iterator[None]:
    """No shapes are checked: a hundred equal steps or passes show no more about them than one, which other tests check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


def write_corpus(place: Path) -> Path:
    """A text of a few words."""
    draw = random.Random(0)
    file = place / "corpus.txt"
    file.write_text("\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(100)))
    return file


def run_config(
    corpus: Path, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **train: Any
) -> RunConfig:
    """What a user says; `run_config(corpus, model={...}, data={...}, steps=3)` says more."""
    text = {"sources": [str(corpus)], "tokenizer": "bytes", **(data or {})}
    return RunConfig.of({"data": text, "model": {**SIZES, **(model or {})}, "train": {**TRAIN, **train}})


# What a training's memory does not depend on.
LOOP = {"steps", "minutes", "epochs", "seed", "evaluate_every", "save_every", "learning_rate", "warmup"}
ESTIMATES: dict[str, int] = {}


def estimated_once(model: TransformerConfig, rows: int, precision: str, train: TrainConfig, *more: Any) -> int:
    """What `training_bytes` estimates, which takes longer than a tiny training: once for all tests of a process."""
    settings = {name: value for name, value in train.to_dict().items() if name not in LOOP}
    key = repr((model.to_dict(), rows, precision, settings, more))
    if key not in ESTIMATES:
        ESTIMATES[key] = training_bytes(model, rows, precision, train, *more)
    return ESTIMATES[key]


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Every machine is equally fast, since measuring it takes seconds; and samples are short."""
    patch.setattr("heddle.runs.need.training_bytes", estimated_once)
    module = import_module("heddle.runs.plan")  # the package has a function of that name
    patch.setattr(module, "measure", lambda *args, **settings: 1e5)
    patch.setattr(module, "peak_rate", lambda *args, **settings: 1e10)
    samples: Any = NextTokenTask.samples
    patch.setattr(NextTokenTask, "samples", lambda *args: samples(*args[:-1], 5))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)
    monkeypatch.setattr("heddle.runs.session.usable_precision", lambda precision, device: precision)


@pytest.fixture
def roomy(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine lacks memory, so what a training needs of it is not estimated."""
    monkeypatch.setattr("heddle.runs.need.training_bytes", lambda *arguments: 0)


@pytest.fixture
def config(corpus: Path) -> Callable[..., RunConfig]:
    """`run_config` of the test's corpus."""
    return partial(run_config, corpus)


@pytest.fixture
def begin(tmp_path: Path, config: Callable[..., RunConfig], quick: None) -> Begin:
    """A new run directory, ready to be trained: `begin("name", steps=12, model={"dropout": 0.2})`."""

    def begun(name: str = "run", **settings: Any) -> Path:
        prepare(config(**settings), tmp_path / name)
        return tmp_path / name

    return begun
