"""Training compiled block by block computes the losses of eager training, with few graphs, however deep the model is."""

import json

import pytest

from tests import programs

FIXED, BUCKETED = (16,), (16, 8, 12)


def check(name: str, widths: tuple[int, ...], most: int) -> None:
    eager, compiled, graphs = json.loads(programs.traced("train.compiled_blocks", name, *widths))
    assert compiled == pytest.approx(eager, abs=1e-4)
    assert eager[-1] < eager[0] - 0.03
    assert graphs <= most


@pytest.mark.parametrize(
    "name", ["gpt", "llama", "encoder-decoder", "mixture", "dropout", "checkpointed", "lora", "packed", "generated"]
)
def test_batches_of_one_shape_take_three_graphs(name: str) -> None:
    """One for the blocks of each stack, one for the chunks of the loss; with adapters, the first block has a graph of its own."""
    check(name, FIXED, 3)


@pytest.mark.parametrize("name", ["gpt", "llama", "encoder-decoder", "mixture", "generated"])
def test_batches_of_several_shapes_take_six(name: str) -> None:
    """Each graph once for the first shape, and once for all others."""
    check(name, BUCKETED, 6)
