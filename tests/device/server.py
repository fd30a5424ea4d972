"""A program: the guard, then torch and heddle imported once, for tests on the imitated GPU (`tests/forks.py`)."""

from tests.device import guard

guard.load()

import pytest  # noqa: F401
import torch._dynamo  # noqa: F401  the first operation under a mode of Python imports it
import torch.testing

import heddle.generate
import heddle.look
import heddle.runs
import heddle.serve
import heddle.train  # noqa: F401
from tests import forks
from tests.device import compare, imitation, trainings  # noqa: F401

if __name__ == "__main__":
    forks.serve()
