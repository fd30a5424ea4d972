"""Where a model runs."""

import pytest
import torch

from heddle.errors import HeddleError
from heddle.model.device import pick_device


def present(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, False, "cuda"), (True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_the_fastest_there_is(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    present(monkeypatch, cuda=cuda, mps=mps)
    assert pick_device().type == expected
    assert pick_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    present(monkeypatch, cuda=False, mps=False)
    with pytest.raises(HeddleError, match=f"device = '{name}'.*use cpu or auto"):
        pick_device(name)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(
        HeddleError, match=r"device = 'cudaa' is not one of auto, cpu, cuda, mps\. Did you mean 'cuda'\?"
    ):
        pick_device("cudaa")
