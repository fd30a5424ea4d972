"""A program: the guard, then torch, heddle and the tests imported once, for tests on the imitated GPU (`tests/forks.py`)."""

import importlib
from pathlib import Path

from tests.device import guard

# What the first operation under a mode of Python imports; heddle, and all that the tests use, comes with the tests.
IMPORTED = ["torch._dynamo", "torch.testing"]
TESTS = [f"tests.device.{path.stem}" for path in sorted(Path(__file__).parent.glob("test_*.py"))]


def prepare() -> None:
    """In this process a GPU can be imitated from now on; it has not imported torch."""
    guard.load()
    importlib.import_module("tests.device.says").without_inference_mode()
    for name in (*IMPORTED, *TESTS):
        importlib.import_module(name)


if __name__ == "__main__":
    prepare()
    importlib.import_module("tests.forks").serve()
