"""`deterministic`: kernels that repeat their bits, where the numbers of a training come from, and nowhere else."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import heddle
from heddle.config import RunConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.errors import HeddleError
from heddle.runs import Trainer
from heddle.runs.resolve import resolve
from heddle.tasks.objective import CrossEntropy
from heddle.train.runtime import deterministic, prepare_deterministic
from tests.running import Begin
from tests.train.test_fit import BYTES, QUIET, TEXT, decoder

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def state() -> tuple[bool, bool]:
    memory: Any = torch.utils.deterministic
    return torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory


def test_steps_and_evaluations_use_such_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are not filled first, which costs a pass over each; afterwards everything is as it was."""
    states, inner = list[tuple[bool, bool]](), CrossEntropy._features

    def features(objective: CrossEntropy, batch: Batch) -> Tensor:
        states.append(state())
        return inner(objective, batch)  # type: ignore[return-value]

    monkeypatch.setattr(CrossEntropy, "_features", features)
    before = state()
    histories = []
    for repeatable in (False, True):
        histories.append(heddle.fit(decoder(), BYTES, TEXT, 2, validation=0.2, deterministic=repeatable, **QUIET))
        assert set(states) == {(repeatable, not repeatable)}
        states.clear()
        assert state() == before
    assert histories[0].losses == histories[1].losses
    assert histories[0].evaluation == histories[1].evaluation


def test_a_run_has_it(begin: Begin) -> None:
    run = begin(deterministic=True, steps=2, evaluate_every=2)
    trainer, states = Trainer(run), list[bool]()
    objective = trainer.session.objective
    trainer.session.objective = lambda batch: (states.append(state()[0]), objective(batch))[1]
    trainer.run()
    assert states == [True, True]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("cumsum_cuda_kernel does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms'.",
         "deterministic = true: cumsum_cuda_kernel does not have a deterministic implementation here: leave it out"),
        ("Deterministic behavior was enabled, but this operation is not deterministic because of CuBLAS: CUBLAS_…",
         "deterministic = true: this process used CUDA before; set CUBLAS_WORKSPACE_CONFIG=:4096:8 before it starts"),
    ],
)  # fmt: skip
def test_what_has_no_such_kernel_is_said(error: str, line: str) -> None:
    with pytest.raises(HeddleError) as refused, deterministic(True):
        raise RuntimeError(error)
    assert str(refused.value) == line
    with pytest.raises(RuntimeError, match="shapes"), deterministic(True):
        raise RuntimeError("shapes cannot be multiplied")


def test_cublas_is_told_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS, raising=False)
    settings = {"data": {"sources": ["x"]}, "train": {"device": "cpu"}}
    resolve(RunConfig.of(settings))
    assert CUBLAS not in os.environ
    resolve(RunConfig.of({**settings, "train": {"device": "cpu", "deterministic": True}}))
    assert os.environ[CUBLAS] == ":4096:8"
    monkeypatch.setenv(CUBLAS, ":16:8")
    prepare_deterministic(True, "cuda")
    assert os.environ[CUBLAS] == ":16:8"


def test_what_cannot_repeat_is_refused() -> None:
    with pytest.raises(HeddleError, match="torch has no kernels for mps that repeat their bits: leave it out"):
        prepare_deterministic(True, "mps")
    with pytest.raises(HeddleError, match=r"compile = on measures which kernels to use.*: leave one out"):
        TrainConfig.of({"compile": "on", "deterministic": True})
