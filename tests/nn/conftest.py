"""Random numbers are the same in every run and in any order of the tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
