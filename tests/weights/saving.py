"""A program that saves a directory over and over, until it is killed: `saving.py TARGET`."""

import sys
from pathlib import Path

from heddle.weights.files import write_directory, write_manifest


def main() -> None:
    target = Path(sys.argv[1])
    print("ready", flush=True)
    for save in range(1, 1001):
        with write_directory(target, replace=True) as partial:
            for name in "abc":
                (partial / name).write_text(str(save) * 1000)
            write_manifest(partial, {"save": save})
        print(save, flush=True)


if __name__ == "__main__":
    main()
