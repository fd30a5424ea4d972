"""A program: help, and command lines that are refused, without the large libraries."""

import contextlib
import sys

from heddle.cli.main import run


def main() -> None:
    run(["--help"])
    slow = sorted({"cyclopts", "rich"} & sys.modules.keys())
    assert not slow, slow
    unknown = ["trian"], ["tokenizer", "trian"], ["--nonsense"]
    for words in ["--help"], ["train", "--help"], ["train", "depth=1", "depth=2"], *unknown:
        with contextlib.suppress(SystemExit):
            run(words)
    heavy = sorted({"torch", "numpy", "transformers", "tokenizers"} & sys.modules.keys())
    assert not heavy, heavy


if __name__ == "__main__":
    main()
