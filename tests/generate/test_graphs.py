"""A decoding step is one graph, used again and again."""

import json

from tests import programs


def test_decoding_is_one_graph() -> None:
    """One within a capacity of the cache; over all its capacities a handful, since lengths become variables."""
    counts = json.loads(programs.run("generate.graphs_of_decoding"))
    assert set(counts["short"].values()) == {1}, counts
    assert len(counts["short"]) == 6
    assert counts["long"] <= 4
