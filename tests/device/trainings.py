"""The small runs of `tests/prove/tasks.py` as trainings, on any device."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heddle.config import TransformerConfig
from heddle.config.model import with_kernel
from heddle.config.train import TrainConfig
from heddle.data.record_store import Store
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.lora import adapt
from heddle.model.transformer import Transformer
from heddle.parallel.parts import Parts
from heddle.parallel.ranks import Ranks
from heddle.prove.subject import awaken
from heddle.tasks import DataSpec, make_task
from heddle.train.optimizer import Optimizer
from heddle.train.training import Training, moving_average
from tests.prove import tasks

STEPS = 3


def store_of(name: str) -> Store:
    """What a run reads, in a folder that is gone afterwards: the files stay mapped."""
    with tempfile.TemporaryDirectory() as place:
        return tasks.store(name, Path(place))


def with_kernels(config: TransformerConfig) -> TransformerConfig:
    """The model with the kernel that `auto` takes on CUDA, so that the CPU rounds like the imitation."""
    try:
        return with_kernel(config, "sdpa")
    except HeddleError:
        return config


def training(
    name: str,
    store: Store,
    device: str,
    precision: str = "fp32",
    ranks: Ranks | None = None,
    divide: Callable[[Transformer, str], Parts | None] = lambda model, precision: None,
    depth: int | None = None,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Training:
    """A run of a few steps from weights at which every part has a say; `divide` divides the model among `ranks`.

    Args:
        model: what is different in the model's config, by path.
    """
    own = tasks.config_of(name, depth)
    config = (with_kernels(own) if device == "cpu" else own).override(model or {})
    built = awaken(build(config, seed=1), 1).to(device)
    spec = DataSpec(store.corpus, config, 4, seed=5, tokenizer=tasks.TOKENIZER, layout=tasks.RUNS[name].layout)
    task = make_task(tasks.RUNS[name].task, spec)
    train = TrainConfig.of({"precision": precision, "compile": "off", "threads": 1, "steps": STEPS, **settings})
    built = adapt(built, train.lora, seed=1)
    parts = divide(built, precision)
    optimizer = Optimizer(built, train, 1e-2, precision, parts=parts)
    eager = task.minimised(built, train)
    return Training(
        train=train,
        model=built,
        optimizer=optimizer,
        task=task,
        eager=eager,
        objective=eager if parts is None else parts.wrap(eager),
        learning_rate=1e-2,
        warmup=1,
        steps=train.steps,
        ranks=Ranks() if ranks is None else ranks,
        ema=moving_average(train, optimizer, {}),
    )


def outcome(training: Training, scored_after: int = 0) -> dict[str, Any]:
    """What comes of it: what each step reports, the score, the weights. It may be scored after an earlier step too."""
    reports = []
    while training.step < training.steps:
        reports.append(training.advance().values)
        if training.step == scored_after:
            training.score(None)
    return {"reports": reports, "score": training.score(None), "weights": training.weights()}
