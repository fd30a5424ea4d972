"""An error that ends a process before it has joined the others."""

import threading
from typing import Any

import pytest
import torch

from heddle.parallel import early
from heddle.parallel.board import Board, Member
from heddle.parallel.join import Process

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def test_rank_0_keeps_its_store_until_a_slow_rank_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine that takes longer than a rank otherwise waits for others that leave."""
    distributed: Any = torch.distributed  # which does not name its stores
    members, store = [Member.this(rank) for rank in range(2)], distributed.HashStore()
    first, slow = (Board(store, 1, members, rank, 5.0, 5.0) for rank in range(2))
    monkeypatch.setattr(Board.leave, "__defaults__", (0.0,))
    monkeypatch.setattr(Process, "join", lambda self, *arguments: first)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    leaving = threading.Timer(0.3, slow.leave)
    leaving.start()
    assert early.tell("no such file")
    assert slow.notes.check(["left/1"])
    assert slow.failure().endswith("failed: no such file")
    leaving.join()
