"""A program that saves directories over and over, each until its process is killed.

For every directory that it reads, a line each, it starts a copy of itself and prints its number; the copy writes the number of each
save that is done to a file beside the directory. After the copy's end it prints "ended".
"""

import os
import sys
from pathlib import Path

from heddle.weights.files import write_directory, write_manifest


def save(target: Path) -> None:
    with target.with_suffix(".log").open("w", buffering=1) as log:
        for number in range(1, 1001):
            with write_directory(target, replace=True) as partial:
                for name in "abc":
                    (partial / name).write_text(str(number) * 1000)
                write_manifest(partial, {"save": number})
            print(number, file=log)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            save(Path(line.removesuffix("\n")))
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
