"""A program: the guard, then torch and heddle imported once, for tests on the imitated GPU (`tests/forks.py`)."""

import importlib

from tests.device import guard

# Besides heddle, what the first operation under a mode of Python imports, and what tests use.
IMPORTED = ["pytest", "torch._dynamo", "torch.testing"]
HEDDLE = [f"heddle.{name}" for name in ("generate", "look", "predict", "runs", "serve", "train")]
TESTS = [f"tests.device.{name}" for name in ("compare", "trainings")]


def prepare() -> None:
    """In this process a GPU can be imitated from now on; it has not imported torch."""
    guard.load()
    importlib.import_module("tests.device.says").without_inference_mode()
    for name in (*IMPORTED, *HEDDLE, *TESTS):
        importlib.import_module(name)


if __name__ == "__main__":
    prepare()
    importlib.import_module("tests.forks").serve()
