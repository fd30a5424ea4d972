"""A decoding step is one graph, used again and again."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_decoding_is_one_graph() -> None:
    """One within a capacity of the cache; over all its capacities a handful, since lengths become variables."""
    env = {**os.environ, "HEDDLE_UNCHECKED": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", "tests.generate.graphs_of_decoding"]
    done = subprocess.run(call, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert set(counts["short"].values()) == {1}, counts
    assert len(counts["short"]) == 6
    assert counts["long"] <= 4
