"""The step that is timed for a plan: one process of many takes it alone, on real tensors."""

from math import isfinite
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

from heddle.config import TrainConfig, preset
from heddle.config.parallel import ParallelConfig
from heddle.parallel.mesh import mesh_sizes
from heddle.scale import measuring
from heddle.scale.meter import Meter
from heddle.scale.rehearsal import Step, Trainable, rehearse
from tests.thorough import thorough

LAYOUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("laptop-tiny", {"replicate": 2}, {}),
    ("laptop-tiny", {"shard": 2}, {"accumulate": 2}),
    ("laptop-tiny", {"tensor": 2}, {}),
    ("laptop-tiny", {"tensor": 2, "sequence": True}, {"checkpoint_activations": True}),
    ("laptop-tiny", {"context": 2}, {}),
    ("laptop-moe", {"expert": 2}, {}),
    ("laptop-tiny", {"pipeline": 2}, {"accumulate": 2}),
    ("laptop-translate", {"shard": 2}, {"optimizer": "muon"}),
]


@pytest.mark.parametrize(("name", "layout", "train"), [LAYOUTS[0], *thorough(*LAYOUTS[1:])])
def test_the_timed_step_is_the_rehearsed_one(
    name: str, layout: dict[str, Any], train: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It computes as much, and ends with an update: nothing that is not there makes a loss or a gradient infinite."""
    settings, parallel = TrainConfig.of({"optimizer": "adamw", **train}), ParallelConfig.of(layout)
    whole = preset(name)
    small = whole.override({f"{stack}.depth": 2 for stack in whole.stacks()})
    step = Step(small, settings, parallel, mesh_sizes(parallel, 2), 2, 32, "fp32")

    def counted(trainable: Trainable, step: Step) -> float:
        batch = trainable.batch(step.rows * step.train.accumulate, step.length)
        taken = Meter()
        before = [master.detach().clone() for master in trainable.optimizer.masters.values()]
        measuring.take(trainable, step.train, batch)
        with taken:
            loss, norm = measuring.take(trainable, step.train, batch)
        assert isfinite(loss)
        assert isfinite(norm)
        masters = trainable.optimizer.masters.values()
        assert any(not torch.equal(old, new) for old, new in zip(before, masters, strict=True))
        return taken.flops

    # A layer of a divided model returns a part of its tokens.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(measuring, "timed", counted)
    measuring.take_alone(0, str(tmp_path), step)
    assert float((tmp_path / "measured-0").read_text()) == rehearse(step)["flops"]


def test_as_many_processes_as_cores_take_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are more processes than cores, they take turns."""
    parallel = ParallelConfig(replicate=8)
    step = Step(preset("laptop-tiny"), TrainConfig(), parallel, mesh_sizes(parallel, 8), 2, 64, "fp32")
    started = list[int]()

    def start(work: Any, arguments: tuple[str, Step], nprocs: int) -> None:
        started.append(nprocs)
        for number in range(nprocs):
            Path(arguments[0], f"measured-{number}").write_text(str(1.0 + number))

    monkeypatch.setattr(measuring, "cores", lambda: 4)
    monkeypatch.setattr(measuring, "spawn", start)
    monkeypatch.setattr(measuring, "measured_once", lambda name, about, measure: measure())
    assert measuring.seconds_of_step(step) == 4.0 * 8 / 4
    assert started == [4]
