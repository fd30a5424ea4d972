"""Every task and family, optimizer and layout of the mesh on 2 and 4 processes: what one process trains."""

import json
import math
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from heddle.parallel.ranks import Ranks
from tests import programs
from tests.parallel import engines
from tests.prove import tasks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

Case = dict[str, Any]
FAMILIES = ("next token, rotary", "next token, experts", "translation, both", "classes, encoder", "masked, experts")
# Each rank cuts its rows to its own longest text, so its products have other shapes than those of one process.
CUT = ("translation, decoder", "chat", "classes", "tags", "contrast", "labels", "numbers")


def case(run: str, mesh: dict[str, int] | None = None, precision: str = "fp32", **train: Any) -> Case:
    return {"run": run, "mesh": mesh or {}, "precision": precision, "train": train}


ON_TWO = [
    *(case(name) for name in tasks.RUNS),
    *(case(name, precision="bf16", optimizer="sgd") for name in tasks.RUNS if not name.startswith(CUT)),
    *(case(name, optimizer=optimizer, accumulate=2) for name in FAMILIES for optimizer in ("muon", "sgd")),
    *(case(name, {"replicate": 2}, optimizer="muon", ema=0.5) for name in FAMILIES),
    *(case(name, lora={"rank": 2}) for name in FAMILIES),
    *(case(name, precision="bf16", optimizer="muon", checkpoint_activations=True) for name in FAMILIES[:3]),
]
ON_FOUR = [
    *(case(name, {"replicate": 2}, optimizer=optimizer) for name in FAMILIES for optimizer in ("muon", "adamw", "sgd")),
    *(case(name, optimizer="muon", ema=0.5) for name in FAMILIES),
    *(case(name, {"replicate": 4}, optimizer="muon") for name in FAMILIES[:2]),
]


@pytest.fixture(scope="module", params=[(2, ON_TWO), (4, ON_FOUR)], ids=["2 processes", "4 processes"])
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Case, int, Any, Any]]:
    """Each case, the number of processes, what they report, and their weights."""
    processes, cases = request.param
    folder = tmp_path_factory.mktemp("engines")
    (folder / "cases.json").write_text(json.dumps(cases))
    launch(processes, "tests.parallel.engines", str(folder))
    return [
        (
            each,
            processes,
            json.loads((folder / f"{number}.json").read_text()),
            load_file(folder / f"{number}.safetensors"),
        )
        for number, each in enumerate(cases)
    ]


def launch(processes: int, *module: str) -> str:
    """What a program prints on several processes of torchrun."""
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*torchrun, str(processes), "-m", *module],
        cwd=programs.ROOT, env=programs.environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@cache
def _alone(text: str) -> tuple[Any, Any]:
    return engines.trained(json.loads(text), Ranks())


def alone(case: Case, processes: int) -> tuple[Any, Any]:
    """The same on one process; in bf16, in as many micro-batches, so that its products have the same shapes."""
    train = case["train"]
    if case["precision"] == "bf16":
        train = {**train, "accumulate": processes * train.get("accumulate", 1)}
    return _alone(json.dumps({**case, "mesh": {}, "train": train}, sort_keys=True))


def has_no_gradient(name: str) -> bool:
    """Whether a parameter's gradient is only rounding, which Adam and Muon make full steps of: attention without positions adds the
    same number to all scores of a query."""
    return name.endswith(".k.bias")


def test_several_processes_train_what_one_trains(results: list[tuple[Case, int, Any, Any]]) -> None:
    for each, processes, result, weights in results:
        expected, expected_weights = alone(each, processes)
        name = json.dumps(each)
        assert len(result["reports"]) == len(expected["reports"]) == 5
        for report, other in zip(result["reports"], expected["reports"], strict=True):
            assert math.isclose(report["loss"], other["loss"], abs_tol=2e-5), name
            assert report["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4, abs=2e-5), name
        assert result["score"] == pytest.approx(expected["score"], rel=1e-4, abs=2e-5), name
        assert weights.keys() == expected_weights.keys(), name
        for key, value in expected_weights.items():
            if not has_no_gradient(key):
                assert float((weights[key] - value).abs().max()) <= 2e-5, f"{name}: {key}"
