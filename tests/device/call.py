"""A program: one test in this process, `tests.device.call MODULE TEST`, with its arguments as JSON on standard input."""

import importlib
import json
import sys

import torch


def main() -> None:
    module, name = sys.argv[1:]
    test = getattr(importlib.import_module(module), name).__wrapped__
    torch.manual_seed(0)
    test(**json.load(sys.stdin))


if __name__ == "__main__":
    main()
