"""Where a model runs."""

from collections.abc import Callable

import pytest
import torch

from heddle.account.machine import matmul_rate
from heddle.errors import HeddleError
from heddle.model.device import find_device, pick_device


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
        HeddleError, match=r"device = 'cudaa' is not one of auto, cpu, cuda, cuda:N, mps\. Did you mean 'cuda'\?"
    ):
        pick_device("cudaa")


def test_a_card_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures `cuda` then measures this card. Only to look one up changes nothing."""
    present(monkeypatch, cuda=True, mps=False)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    card = torch.device("cuda", 1)
    assert find_device("cuda:1") == find_device(card) == card
    assert not current
    assert pick_device("cuda:1") == card
    assert current == [card]


@pytest.mark.parametrize(("count", "line"), [(1, "one GPU, cuda:0"), (2, "2 GPUs, cuda:0 to cuda:1")])
@pytest.mark.parametrize("find", [pick_device, find_device])
def test_a_card_beyond_the_last_is_refused(
    find: Callable[[str], torch.device], count: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    present(monkeypatch, cuda=True, mps=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(HeddleError, match=f"^device = 'cuda:2': this machine has {line}$"):
        find("cuda:2")


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cpu:1", "mps:0", "meta"])
def test_only_cards_have_numbers(name: str) -> None:
    with pytest.raises(HeddleError, match=f"device = '{name}' is not one of auto, cpu, cuda, cuda:N, mps"):
        pick_device(name)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_what_measures_needs_a_device_that_computes(device: str | torch.device) -> None:
    assert find_device(device, meta=True) == torch.device("meta")
    with pytest.raises(HeddleError, match="device = 'meta' is not one of auto, cpu, cuda, cuda:N, mps"):
        find_device(device)
    with pytest.raises(HeddleError, match="device = 'meta' is not one of auto"):
        matmul_rate(size=8, device=device)


@pytest.mark.parametrize("find", [pick_device, find_device])
def test_a_card_of_a_machine_without_any_is_refused(
    find: Callable[[str], torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    present(monkeypatch, cuda=False, mps=False)
    with pytest.raises(
        HeddleError, match=r"^device = 'cuda:1': torch \S+ does not find this device here; use cpu or auto$"
    ):
        find("cuda:1")
