"""A program that holds a run's lock until it is killed: `holding.py RUN`."""

import sys
import time
from pathlib import Path

from heddle.weights.files import Hold


def main() -> None:
    hold = Hold(Path(sys.argv[1]))
    print("held", flush=True)
    time.sleep(60)
    hold.release()


if __name__ == "__main__":
    main()
