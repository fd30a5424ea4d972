"""Moves between devices: one wait for all that is read, none for what is given."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.nn.numeric import moved, on_host


def test_tensors_of_any_dtype_are_read_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.tensor(0.5), torch.tensor([3, 1 << 40]), torch.zeros(0), torch.randn(2, 3).to(torch.bfloat16).mT]
    copies, copy = list[torch.Size](), Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: copies.append(tensor.shape) or copy(tensor))
    for read, tensor in zip(on_host(tensors), tensors, strict=True):
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read, tensor)
    assert len(copies) == 1


def test_a_copy_to_cuda_is_pinned_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: calls.append(tensor.is_contiguous()) or tensor)
    monkeypatch.setattr(Tensor, "to", lambda tensor, *place, **how: calls.append((*place, how)) or tensor)
    moved(torch.arange(3).expand(2, 3), "cuda:0")
    moved(torch.zeros(2), torch.device("cpu"))
    moved(torch.zeros(2, device="meta"), "cuda")  # only the CPU has memory to pin
    assert calls == [True, ("cuda:0", {"non_blocking": True}), (torch.device("cpu"), {}), ("cuda", {})]
