"""Training compiled block by block computes the losses of eager training, with few graphs, however deep the model is."""

import json

import pytest

from tests import programs
from tests.thorough import thorough

SEVERAL = ("gpt", "llama", "encoder-decoder", "mixture", "generated")  # which also get batches of other widths


@pytest.mark.parametrize(
    "name",
    ["gpt", *thorough(*(name for name in SEVERAL if name != "gpt"), "dropout", "checkpointed", "lora", "packed")],
)
def test_batches_of_one_shape_take_three_graphs_and_all_others_three_more(name: str) -> None:
    """One for the blocks of each stack, one for the chunks of the loss; with adapters, the first block has a graph of its own."""
    widths = (16, 8, 12) if name in SEVERAL else (16,)
    eager, compiled, first, graphs = json.loads(programs.traced("train.compiled_blocks", name, *widths))
    assert compiled == pytest.approx(eager, abs=1e-4)
    assert eager[-1] < eager[0] - 0.03
    assert first <= 3
    assert graphs <= (6 if name in SEVERAL else 3)
