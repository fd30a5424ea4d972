"""What each of several processes has to say: rank 0 speaks on the terminal, the others in files of the run.

logs/rank-0.txt     its starts, and the error that ended it
logs/rank-3.txt     its starts, and its standard error
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heddle.config.train import TrainConfig
from heddle.errors import OUT_OF_MEMORY, HeddleError, ran_out_of_memory
from heddle.parallel.board import STOPPED, Board, Lost, versions
from heddle.parallel.early import SPEAKING
from heddle.parallel.join import join_ranks, process
from heddle.parallel.ranks import Ranks

LOGS = "logs"


def join_quietly(device: str, train: TrainConfig) -> Ranks:
    """Join the other processes (see `heddle.parallel.join`).

    Raises:
        SystemExit: one is missing or has failed, which another rank reports.
    """
    try:
        return join_ranks(device, train.start_timeout, train.step_timeout)
    except Lost as error:
        board = process().board
        if error.speaks or (board is not None and board.rank == 0):
            raise
        with suppress(KeyboardInterrupt, RuntimeError):
            if board is not None:
                board.leave()
            time.sleep(SPEAKING)  # the launcher ends rank 0 once this process has ended
        raise SystemExit(2) from None


class Output:
    """The standard error of this process, from when its run is known.

    Args:
        ranks: this process among the others.

    Attributes:
        log: its file, once it is open; -1 before, or if it cannot be written.
        terminal: where standard error went before.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.log, self.terminal = -1, -1

    def open(self, run: Path) -> None:
        """Write to the file of this rank from now on; if that is impossible, say so once and go on."""
        ranks, board = self.ranks, self.ranks.board
        if board is None:
            return
        file = run / LOGS / f"rank-{ranks.rank}.txt"
        try:
            with suppress(FileExistsError):
                file.parent.mkdir()
            self.log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            print(
                f"heddle: {board.members[ranks.rank]} cannot write {file}: {error.strerror}; it goes on",
                file=sys.stderr,
            )
            return
        programs = ", ".join(f"{name} {version}" for name, version in versions().items())
        start = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} start {board.number}"
        self.record(f"{start}: {board.members[ranks.rank]} of {ranks.count}, {programs}")
        if not ranks.leads:
            self.terminal = board.terminal = os.dup(2)
            os.dup2(self.log, 2)

    def record(self, text: str) -> None:
        """Write to the file alone; a full disk loses it, and nothing else."""
        with suppress(OSError):
            os.write(self.log, f"{text.rstrip()}\n".encode())

    def speak(self) -> None:
        """Write to the terminal again, such as in place of rank 0 that is lost."""
        if self.terminal >= 0:
            os.dup2(self.terminal, 2)


@contextmanager
def reported(output: Output) -> Iterator[None]:
    """Inside the block, an error of one rank reaches all of them, and the terminal once, by rank 0 if it is there.

    Raises:
        SystemExit: in place of an error that rank 0 reports.
    """
    board = output.ranks.board
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        if board is None:
            raise
        lost = output.ranks.lost(error) if isinstance(error, RuntimeError) else None
        if output.ranks.leads:
            output.record(_text(lost or error))
        _report(lost or error, board, output)
        if lost is not None:
            raise lost from error
        raise


def _report(error: BaseException, board: Board, output: Output) -> None:
    """Tell the others of an error, and end this process here unless it shall raise it."""
    failure = ""
    if not isinstance(error, Lost):
        try:
            failure = board.failure()
            board.fail(_reason(error))
            with suppress(KeyboardInterrupt):  # the launcher may end this process meanwhile, which still says why
                board.leave()
        except RuntimeError:  # the store is gone, so nobody else can say it
            output.speak()
            return
    elif error.speaks:
        if not output.ranks.leads:
            output.record(_text(error))
            output.speak()
        return
    if output.ranks.leads:
        # The launcher ends rank 0 when another rank has failed, which it may not know yet.
        if isinstance(error, KeyboardInterrupt) and failure and not failure.endswith(STOPPED):
            raise HeddleError(failure) from error
    elif output.log < 0 and isinstance(error, HeddleError | KeyboardInterrupt):
        with suppress(KeyboardInterrupt, RuntimeError):
            board.leave()
            time.sleep(SPEAKING)  # the launcher ends rank 0 once this process has ended
        raise SystemExit(2) from None


def _reason(error: BaseException) -> str:
    """In a line; empty for a signal."""
    if isinstance(error, KeyboardInterrupt):
        return ""
    full = not isinstance(error, HeddleError) and isinstance(error, Exception) and ran_out_of_memory(error)
    return OUT_OF_MEMORY if full else str(error).strip().partition("\n")[0] or type(error).__name__


def _text(error: BaseException) -> str:
    """For a log: a line for bad input, all of it for anything else."""
    if isinstance(error, HeddleError | KeyboardInterrupt):
        return f"heddle: {str(error) or 'stopped'}"
    return "".join(traceback.format_exception(error))
