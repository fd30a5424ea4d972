"""A program: rank 0 trains a run that rank 1 has joined and then leaves, `lost_rank.py RUN hangs|ends`. It prints the error."""

import os
import subprocess
import sys
import time

from heddle.errors import HeddleError
from heddle.runs import Trainer
from tests import programs


def main(run: str, how: str) -> None:
    trainer = Trainer(run)
    if os.environ["RANK"] == "1":
        time.sleep(60 if how == "hangs" else 0)
        os._exit(0)
    try:
        trainer.run()
    except HeddleError as error:
        print(error)


def started(run: str, how: str, port: int) -> str:
    """What rank 0 prints; rank 1 is ended after it."""
    here = [sys.executable, "-m", "tests.parallel.lost_rank", run, how]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environments = [
        {**programs.environment(), **address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)
    ]
    with subprocess.Popen(here, cwd=programs.ROOT, env=environments[1]) as other:
        try:
            first = subprocess.run(
                here, cwd=programs.ROOT, env=environments[0], capture_output=True, text=True, timeout=120
            )
        finally:
            other.kill()
    return first.stdout + first.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
