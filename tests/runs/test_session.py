"""A run is opened as a session: new, or as its newest valid checkpoint has it; and it is all that a loop needs."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from heddle.data.batch import Batch
from heddle.errors import HeddleError
from heddle.runs import Interrupted, Session, Trainer, open_session
from heddle.tasks import Loss, NextTokenTask
from heddle.train import train_step
from heddle.train.runtime import seed_step
from heddle.weights.files import is_held
from tests.running import Begin
from tests.runs.test_resume import stop_after, written

pytestmark = pytest.mark.usefixtures("roomy")


def test_a_new_run_is_opened_at_step_0(begin: Begin) -> None:
    run = begin(steps=4)
    session = open_session(run)
    assert (session.step, session.opening.source, session.opening.notes, session.opening.damaged) == (0, None, [], [])
    assert isinstance(session.task, NextTokenTask)
    assert session.objective is session.eager
    assert session.eager.model is session.model
    assert is_held(run)
    session.run.hold.release()
    assert not is_held(run)


def test_a_stopped_run_is_opened_where_it_was(begin: Begin) -> None:
    run = begin(steps=6, evaluate_every=2, precision="bf16")
    trainer = Trainer(run)
    stop_after(3, trainer)
    with pytest.raises(Interrupted):
        trainer.run()
    session = open_session(run)
    assert session.step == 3
    assert session.opening.source == run / "checkpoints" / "step-3"
    before, after = trainer.session.weights(), session.weights()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_loop_of_ones_own_is_the_trainers(begin: Begin, tmp_path: Path) -> None:
    """Four lines around `train_step`, with the same weights at the end."""
    run = begin(steps=3, schedule="constant", warmup=0)
    own = shutil.copytree(run, tmp_path / "own")
    Trainer(run).run()
    session = open_session(own)
    train = session.run.train
    while session.step < session.run.chosen.steps:
        seed_step(train.seed, session.step)
        batch = session.task.batch(session.task.examples(session.step))
        train_step(session.objective, session.optimizer, batch, train.accumulate, 1.0, train.clip)
        session.step += 1
    session.save()
    name = "checkpoints/step-3/optimizer.safetensors"
    assert (own / name).read_bytes() == written(run)[name]


def test_a_wrapped_objective_is_what_steps_call(begin: Begin) -> None:
    """Put into the session, as a parallel wrapper would be; what is saved has the model's names."""

    class Wrapper(torch.nn.Module):
        calls = 0

        def __init__(self, session: Session) -> None:
            super().__init__()
            self.module = session.eager

        def forward(self, batch: Batch) -> Loss:
            self.calls += 1
            loss: Loss = self.module(batch)
            return loss

    run, plain = begin("wrapped", steps=3), begin("plain", steps=3)
    trainer = Trainer(run)
    trainer.session.objective = wrapper = Wrapper(trainer.session)
    trainer.run()
    Trainer(plain).run()
    assert wrapper.calls == 3
    assert written(run) == written(plain)


def test_a_run_of_another_version_is_refused(begin: Begin) -> None:
    run = begin(steps=2)
    data = json.loads((run / "config.json").read_text())
    assert data["version"] == 2
    assert data["task"] == {"kind": "next_token"}
    (run / "config.json").write_text(json.dumps({**data, "version": 1}))
    with pytest.raises(HeddleError, match=r"config\.json: run directory version 1, .*: train it again, or export"):
        open_session(run)
    assert not is_held(run)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_run_is_compiled_where_that_was_chosen(begin: Begin, monkeypatch: pytest.MonkeyPatch, chosen: bool) -> None:
    run = begin(steps=2, compile="on" if chosen else "off")
    compiled = torch.nn.Identity()
    monkeypatch.setattr("heddle.runs.session.compile_objective", lambda objective: compiled)
    session = open_session(run)
    assert session.objective is (compiled if chosen else session.eager)
    session.run.hold.release()
