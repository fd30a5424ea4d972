"""Training's forward pass, loss and gradient are one graph for torch.compile."""

import json

import pytest

from tests import programs


@pytest.mark.thorough
def test_a_training_step_is_one_graph() -> None:
    """Two micro-batches of three batches, in fp32 with dropout and in bf16 without: captured once, the same loss."""
    counts = json.loads(programs.traced("train.graphs_of_steps"))
    assert len(counts) == 2
    assert set(counts.values()) == {1}, counts
