"""A step that does not fit into memory: what was trained is saved, and one line says what to lower."""

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.data.batch import Batch
from heddle.errors import HeddleError, OutOfMemory
from heddle.runs import Trainer, extend
from heddle.tasks.objective import Loss
from tests.running import Begin

SIZES = {"steps": 6, "evaluate_every": 6, "save_every": 2, "optimizer": "adamw"}
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


def failing(objective: Callable[[Batch], Loss], call: int, held: list[Any]) -> Callable[[Batch], Loss]:
    """The objective, whose call with this number, from 1, fails while it holds a tensor."""
    calls = 0

    def compute(batch: Batch) -> Loss:
        nonlocal calls
        calls += 1
        if calls == call:
            activations = torch.zeros(8)
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError(FULL)
        return objective(batch)

    return compute


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_the_steps_before_are_saved(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They continue as if nothing had happened. What the step held is gone before they are saved."""
    run = begin(**SIZES, accumulate=2)
    whole = shutil.copytree(run, tmp_path / "whole")
    trainer, held = Trainer(run), list[Any]()
    session = trainer.session
    session.objective = failing(session.objective, 8, held)
    save = session.save

    def check() -> None:
        assert session.step < 3 or held[0]() is None
        save()

    monkeypatch.setattr(session, "save", check)
    with pytest.raises(OutOfMemory) as error:
        trainer.run()
    assert str(error.value) == (
        "step 4: out of memory with 2 rows of 16 tokens at a time: use accumulate=4 (now 2), checkpoint_activations=true, or a "
        f"smaller batch, context or model; the last good checkpoint is {run}/checkpoints/step-3; continue with: heddle train "
        f"--resume {run} checkpoint_activations=true, or train a new run"
    )
    extend(run, {"train.checkpoint_activations": True})
    Trainer(run).run()
    Trainer(whole).run()
    assert weights(run) == weights(whole)


def test_a_first_step_leaves_no_checkpoint(begin: Begin) -> None:
    run = begin(**SIZES, batch=1, checkpoint_activations=True)
    trainer = Trainer(run)
    trainer.session.objective = failing(trainer.session.objective, 1, [])
    with pytest.raises(OutOfMemory) as error:
        trainer.run()
    assert str(error.value) == (
        "step 1: out of memory with 1 row of 16 tokens at a time: use a smaller batch, context or model; no checkpoint "
        f"exists yet; continue with: heddle train --resume {run}, once more memory is free, or train a new run"
    )


def test_an_update_that_stopped_halfway_is_not_saved(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(**SIZES)
    whole = shutil.copytree(run, tmp_path / "whole")
    trainer = Trainer(run)
    last = trainer.session.optimizer.optimizers[-1]
    update, calls = last.step, list[int]()

    def step() -> None:
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        update()

    monkeypatch.setattr(last, "step", step)
    with pytest.raises(OutOfMemory, match=r"^step 4: .*; the last good checkpoint is \S+/step-2; continue"):
        trainer.run()
    Trainer(run).run()
    Trainer(whole).run()
    assert weights(run) == weights(whole)


def test_other_errors_stay_what_they_are(begin: Begin) -> None:
    trainer = Trainer(begin(**SIZES))

    def wrong(batch: Batch) -> Loss:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    trainer.session.objective = wrong
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trainer.run()


def test_an_evaluation_that_does_not_fit(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(begin(**SIZES))

    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(trainer.session.eager), "by_row", full)
    with pytest.raises(
        HeddleError, match=r"^out of memory with 4 rows of 16 tokens to score: use fewer rows, a shorter"
    ):
        trainer.run()
