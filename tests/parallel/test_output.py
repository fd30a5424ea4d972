"""What a process says of its error while a launcher ends it."""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.parallel.board import Board, Member
from heddle.parallel.output import Output, reported
from heddle.parallel.ranks import Ranks

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def ended_soon() -> Iterator[None]:
    """This process is told to end in a moment, as by SIGTERM on the command line."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("ended_soon")
def test_rank_0_says_its_error_although_the_launcher_ends_it() -> None:
    """It waits for the others to read why it ends; the first of them that has ended makes the launcher end rank 0."""
    distributed: Any = torch.distributed  # which does not name its stores
    store = distributed.HashStore()
    board = Board(store, 1, [Member.this(rank) for rank in range(2)], 0, 5.0, 5.0)
    either = (HeddleError, KeyboardInterrupt)
    with pytest.raises(either) as raised, reported(Output(Ranks(count=2, board=board))):
        raise HeddleError("another tokenizer")
    assert str(raised.value) == "another tokenizer"
    assert Board(store, 1, board.members, 1, 5.0, 5.0).failure().endswith("failed: another tokenizer")
