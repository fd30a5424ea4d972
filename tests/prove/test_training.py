"""The laws of training hold for every task and family of models, and each of them notices a fault."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxtyping
import pytest

from heddle.data.buckets import Buckets
from heddle.data.record_store import Store
from heddle.prove import prove_run
from heddle.prove.coverage import _held_out_share
from heddle.prove.laws import LAWS, check_law
from heddle.prove.training import TrainingSubject
from heddle.tasks import make_task
from tests.planting import Fault, collect, planted
from tests.thorough import thorough

from .tasks import RUNS, directory, store, training

# Where a law has nothing to look at: the beginnings of names of runs.
APART = {
    "packing of rows": (
        "translation, both",
        "spans",
        "classes",
        "labels",
        "numbers",
        "contrast",
    ),  # a source for each row, or a target
    "future of targets": ("classes", "labels", "numbers", "tags, encoder", "contrast"),
    "started texts": ("masked", "classes", "labels", "tags", "numbers", "contrast"),
    "stepwise losses": ("masked", "classes", "labels", "tags", "numbers", "contrast"),
}
PLANTED = [fault for fault in collect() if fault.law]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """What a run reads; runs of one task read the same."""

    @cache
    def made(kind: str) -> Store:
        name = next(name for name in RUNS if RUNS[name].task.kind == kind)
        return store(name, tmp_path_factory.mktemp("run"))

    return lambda name: made(RUNS[name].task.kind)


@pytest.fixture(autouse=True)
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking shapes takes two thirds of the time, and other tests check them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# A run of each task.
FIRST = [*{RUNS[name].task.kind: name for name in reversed(RUNS)}.values()]


@pytest.mark.parametrize("name", [*FIRST, *thorough(*(name for name in RUNS if name not in FIRST))])
def test_every_law_holds(name: str, stores: Callable[[str], Store]) -> None:
    tried = training(name, stores(name))
    for law in LAWS:
        verdict = check_law(law, tried)
        if name.startswith(APART.get(law, ("nothing",))):
            assert verdict.word == "NOT CHECKED", verdict
            continue
        assert verdict.word in ("EXACT", "ROUNDING"), verdict
        assert verdict.detail, "what was looked at is said"
        if law in ("batches", "targets scored once", "epoch", "started texts", "parts"):
            assert verdict.word == "EXACT"
        elif law != "cut of a batch":  # there, one comparison is in fp32
            # The weights of classes are summed in fp32.
            assert verdict.error < (1e-6 if name == "classes, encoder" else 1e-9), verdict


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    with planted(fault):
        verdict = check_law(fault.law, training(fault.run, store(fault.run, tmp_path)))
    assert verdict.word == "DIFFERENT", verdict


def test_rows_that_ranks_cannot_divide_are_found(
    stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step with as many rows as a number of tokens has."""
    tried = training(name := "classes, encoder", stores("classes, encoder"))
    reading = replace(tried.task.spec, batch_tokens=128)
    made = TrainingSubject(lambda: make_task(RUNS[name].task, reading), tried.model, 1e-7)
    assert check_law("batches", made).word == "EXACT"
    monkeypatch.setattr(Buckets, "capacity", lambda self, width: 3)
    assert check_law("batches", made).word == "DIFFERENT"


def test_a_share_that_was_not_drawn_is_found() -> None:
    """Of 100 different records, one is not about 30."""
    drawn: Any = SimpleNamespace(split={"by": "content", "validation": 0.3})
    for held, same in ((30, True), (19, True), (1, False), (70, False)):
        (compared,) = _held_out_share(drawn, 100 - held, held)
        assert (compared.actual["count"] == compared.expected["count"]).all() == same


def test_the_proof_of_a_run_has_the_laws_of_its_training(tmp_path: Path) -> None:
    name = "translation, both"
    run = directory(name, tmp_path / "run")
    proof = prove_run(run)
    words = {verdict.check: verdict.word for verdict in proof.verdicts}
    assert proof.holds
    assert {law for law in LAWS if words[law] == "NOT CHECKED"} == {
        law for law, apart in APART.items() if name.startswith(apart)
    }
    assert words["resume"] == "NOT CHECKED"
    assert json.loads((run / "proof.json").read_text()) == proof.to_dict()


def test_where_there_is_no_text_nothing_is_claimed_and_the_reason_is_said(tmp_path: Path) -> None:
    run = directory("next token, rotary", tmp_path / "run")
    shutil.rmtree(run / "data")
    verdicts = {verdict.check: verdict for verdict in prove_run(run).verdicts}
    assert {(verdicts[law].word, verdicts[law].detail) for law in LAWS} == {
        ("NOT CHECKED", "the run has no training data")
    }


def test_a_fault_in_a_run_decides_what_its_proof_says(tmp_path: Path) -> None:
    run = directory("next token, rotary", tmp_path / "run")
    with planted(next(fault for fault in PLANTED if fault.name == "windows are read twice")):
        proof = prove_run(run)
    assert not proof.holds
    assert [verdict.check for verdict in proof.verdicts if not verdict.holds] == ["epoch"]
