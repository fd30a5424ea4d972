"""A program: help, and a refused command line, without the large libraries."""

import contextlib
import sys

from heddle.cli.main import run


def main() -> None:
    run(["--help"])
    slow = sorted({"cyclopts", "rich"} & sys.modules.keys())
    assert not slow, slow
    for words in ["--help"], ["train", "--help"], ["train", "depth=1", "depth=2"]:
        with contextlib.suppress(SystemExit):
            run(words)
    heavy = sorted({"torch", "numpy", "transformers", "tokenizers"} & sys.modules.keys())
    assert not heavy, heavy


if __name__ == "__main__":
    main()
