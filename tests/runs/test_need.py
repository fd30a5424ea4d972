"""How much memory a training needs: of its largest micro-batches, and when it is refused."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.account.memory import PROCESS
from heddle.config import TrainConfig, sized
from heddle.data.store import TokenStore
from heddle.errors import HeddleError
from heddle.tasks.task import Task
from heddle.train.length import StepSize

need = import_module("heddle.runs.need")
GIB = 2**30


def acting(kind: type, **parts: Any) -> Any:
    """An object of a class with these parts alone, made without its constructor."""
    made = type(kind.__name__, (kind,), parts)
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return object.__new__(made)


@pytest.mark.parametrize(
    ("stacks", "targets", "share"), [(1, 30.0, 0.33), (2, 30.0, 0.66), (1, 95.0, 1.0)], ids=["one", "two", "nearly all"]
)
def test_micro_batches_are_rounded_up_and_a_source_has_no_targets(
    monkeypatch: pytest.MonkeyPatch, stacks: int, targets: float, share: float
) -> None:
    monkeypatch.setattr(need, "step_size", lambda task: StepSize(100, targets))
    model = SimpleNamespace(stacks=lambda: dict.fromkeys(range(stacks)))
    task = acting(Task, shapes=lambda self: [(8, 16), (3, 64)], spec=SimpleNamespace(model=model))
    estimate = need.Need.of(task, TrainConfig(accumulate=3))
    assert estimate.shapes == ((3, 16), (1, 64))
    assert estimate.targets == pytest.approx(share)


def test_the_shape_that_needs_most_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need, "training_bytes", lambda model, rows, precision, train, length, *more: rows * length)
    several = need.Need(((3, 16), (1, 64), (5, 2)), 0.5)
    assert several.bytes(sized(1, vocab_size=16, dim=16), "fp32", TrainConfig(), "cpu") == 64


@pytest.mark.parametrize(("device", "tokens", "held"), [("cuda", 300, 0), ("cpu", 300, 600), ("cpu", 5000, 2000)])
def test_tokens_that_are_read_stay_in_memory_once(device: str, tokens: int, held: int) -> None:
    store = acting(TokenStore, tokens=lambda self, part: {"train": 1000}[part])
    assert need.held_by_process(device, store, tokens) == held + (PROCESS if device == "cpu" else 0)


@pytest.mark.parametrize(("rows", "refused"), [(need.LARGE // 64, True), (need.LARGE // 64 - 1, False)])
def test_rows_that_cannot_fit_are_refused_before_a_step_is_read(
    machine: None, monkeypatch: pytest.MonkeyPatch, rows: int, refused: bool
) -> None:
    """A task whose steps cannot be read; precisions are tried until one fits, and fewer rows are left to the whole account."""
    model = sized(1, vocab_size=16, dim=16)
    task = acting(Task, shapes=lambda self: [(4 * rows, 64)], spec=SimpleNamespace(model=model))
    needs = {"fp32": 4 * GIB, "bf16": 3 * GIB}
    monkeypatch.setattr(need, "training_bytes", lambda model, rows, precision, *more: needs[precision])
    monkeypatch.setattr(need, "training_state", lambda model, precision, train: {"total": needs[precision] // 4})
    if not refused:
        need.check_rows(task, TrainConfig(accumulate=4), "cpu")
        return
    with pytest.raises(HeddleError, match=r"needs about 3\.0 GiB, but only 1\.0 GiB"):
        need.check_rows(task, TrainConfig(accumulate=4), "cpu")
    needs["bf16"] = GIB
    need.check_rows(task, TrainConfig(accumulate=4), "cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 of 10 GiB is free, of which this process has half a GiB."""
    monkeypatch.setattr(need, "available_memory", lambda device: GIB)
    monkeypatch.setattr(need, "total_memory", lambda device: 10 * GIB)
    monkeypatch.setattr(need, "resident", lambda: GIB // 2)


@pytest.mark.usefixtures("machine")
def test_the_first_way_that_fits_is_taken() -> None:
    def needs() -> Iterator[int]:
        yield from (2 * GIB, GIB)
        pytest.fail("what fits ends the search")

    need.check_memory(needs(), (pytest.fail("only a refusal counts the state") for _ in range(1)), "cpu")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("needs", "device", "least", "others"),
    [
        ((3.0, 2.0, 4.0), "cpu", "2.0", True),
        ((8.6,), "cpu", "8.6", False),
        ((8.6,), "cuda", "8.6", True),
        ((9.5,), "cuda", "9.5", False),
    ],
)
def test_what_does_not_fit_says_who_has_the_rest(
    needs: tuple[float, ...], device: str, least: str, others: bool
) -> None:
    """Other programs, if a training of this size would fit into nine tenths of the machine."""
    with pytest.raises(HeddleError, match=f"needs about {least} GiB, but only 1.0 GiB are free") as refused:
        need.check_memory([int(each * GIB) for each in needs], [GIB, 2 * GIB], device)
    assert ("other programs hold the rest of 10.0 GiB" in str(refused.value)) == others
    assert "use a larger accumulate" in str(refused.value)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("state", "split", "others"), [(1.1, False, True), (8.6, True, True), (9.5, True, False)])
def test_rows_do_not_help_where_the_state_is_too_large(state: float, split: bool, others: bool) -> None:
    before = "other programs hold the rest of 10.0 GiB: end them, or " if others else ""
    with pytest.raises(HeddleError) as refused:
        need.check_memory([10 * GIB, 11 * GIB], [int(state * GIB), 12 * GIB], "cuda", split)
    assert str(refused.value) == (
        f"the weights, gradients and optimizer state alone need {state} GiB, but only 1.0 GiB are free: {before}use a smaller "
        "model, adapters, or another optimizer"
    )
