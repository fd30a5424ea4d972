"""A program for several ranks: trains a run and prints how that went, `saving.py RUN watched|full|unwritable|"killed MOMENT"`.

`watched` prints after each step whether the checkpoint of step 3 is being written, which takes `SLOW` seconds. `full` gives rank 1
no room for a file, `unwritable` no right to make a folder. `killed` kills every process so many seconds after the first checkpoint
is begun, which takes as long, or as soon as it is `named`.
"""

import errno
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from heddle.errors import HeddleError
from heddle.prove.kills import MinimalTrainer
from heddle.train.report import Report
from heddle.weights.files import SLOW_SAVE, being_written

ROOM = 2000  # bytes
SLOW = 2.5  # seconds that a checkpoint takes at least
LAST = 5  # the last step that is watched


def kill_in_save(target: Path, moment: str) -> None:
    """Kill this process while a directory is written."""
    os.environ[SLOW_SAVE] = "0" if moment == "named" else str(SLOW)

    def wait() -> None:
        while not (target.exists() if moment == "named" else being_written(target)):
            time.sleep(0.01)
        time.sleep(0 if moment == "named" else float(moment))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(run: str, how: str) -> None:
    torch.set_num_threads(1)
    trainer = MinimalTrainer(run)
    target = trainer.session.checkpoint(trainer.session.step + 3)
    if how == "full" and trainer.session.ranks.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))
    if how == "unwritable" and trainer.session.ranks.rank == 1:
        writer: Any = HuggingFaceStorageWriter
        writer.prepare_local_plan = refuse  # where torch makes the folder, if no other process has made it yet
    if how == "watched":
        os.environ[SLOW_SAVE] = str(SLOW)
        trainer.readers.append(lambda report: watch(report, target))
    if how.startswith("killed"):
        kill_in_save(target, how.split()[1])
    try:
        trainer.run()
    except HeddleError as error:
        if trainer.session.ranks.leads:
            print(error)


def refuse(*arguments: Any) -> None:
    """What a file system says that is mounted to be read only."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def watch(report: Report, target: Path) -> None:
    """Print whether a directory is being written after a step; after those that follow its save, once that has begun."""
    while report.step > int(target.name.removeprefix("step-")) and not (being_written(target) or target.exists()):
        time.sleep(0.01)
    print(report.step, being_written(target))
    if report.step == LAST:
        os.environ[SLOW_SAVE] = "0"


if __name__ == "__main__":
    main(*sys.argv[1:])
