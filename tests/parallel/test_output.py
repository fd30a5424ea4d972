"""What a process says of its error while a launcher ends it."""

from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.parallel.board import Board, Member
from heddle.parallel.output import Output, reported
from heddle.parallel.ranks import Ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def test_rank_0_says_its_error_although_the_launcher_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the others to read why it ends; the first of them that has ended makes the launcher end rank 0."""

    def ended(board: Board) -> None:
        raise KeyboardInterrupt  # as SIGTERM does on the command line

    monkeypatch.setattr(Board, "leave", ended)
    distributed: Any = torch.distributed  # which does not name its stores
    store = distributed.HashStore()
    board = Board(store, 1, [Member.this(rank) for rank in range(2)], 0, 5.0, 5.0)
    either = (HeddleError, KeyboardInterrupt)
    with pytest.raises(either) as raised, reported(Output(Ranks(count=2, board=board))):
        raise HeddleError("another tokenizer")
    assert str(raised.value) == "another tokenizer"
    assert Board(store, 1, board.members, 1, 5.0, 5.0).failure().endswith("failed: another tokenizer")
