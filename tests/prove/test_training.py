"""The laws of training hold for every task and family of models, and each of them notices a fault."""

from pathlib import Path

import jaxtyping
import pytest

from benchmarks.faults import FAULTS, Fault
from heddle.data.store import TokenStore
from heddle.prove.laws import LAWS, check_law
from tests.laws.test_planted import planted

from .tasks import RUNS, store, training

# Where a law has nothing to look at: an encoder does not write.
APART = {"stepwise losses": "masked"}
PLANTED = [fault for fault in FAULTS if fault.law]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store(tmp_path_factory.mktemp("texts"))


@pytest.fixture(autouse=True)
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking shapes takes two thirds of the time, and other tests check them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("name", RUNS)
def test_every_law_holds(name: str, texts: TokenStore) -> None:
    tried = training(name, texts)
    for law in LAWS:
        verdict = check_law(law, tried)
        if name.startswith(APART.get(law, "none")):
            assert verdict.word == "NOT CHECKED", verdict
            continue
        assert verdict.word in ("EXACT", "ROUNDING"), verdict
        assert verdict.detail, "what was looked at is said"
        if law in ("batches", "targets scored once", "epoch", "parts"):
            assert verdict.word == "EXACT"
        elif not verdict.detail.endswith("cut into 2, 4, 8"):  # there, one comparison is in fp32
            assert verdict.error < 1e-9, verdict


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    with planted(fault):
        verdict = check_law(fault.law, training(fault.run, store(tmp_path)))
    assert verdict.word == "DIFFERENT", verdict
