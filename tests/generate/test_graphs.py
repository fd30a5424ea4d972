"""A decoding step is one graph, used again and again."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json
from graphs import captured
from heddle.config import AttentionConfig, BlockConfig, EntryConfig, RotaryConfig
from heddle.config import SamplingConfig, StackConfig, TransformerConfig
from heddle.generate import generate
from heddle.model import build

def graphs(positions, prompts, tokens):
    rotary = RotaryConfig() if positions == "rotary" else None
    block = BlockConfig(mixer=AttentionConfig(heads=4, kv_heads=2, relative=rotary))
    stack = StackConfig(depth=2, block=block, entry=EntryConfig(positions="none" if rotary else "learned"))
    model = build(TransformerConfig(vocab_size=61, dim=32, context=1024, decoder=stack))
    sampling = SamplingConfig(max_tokens=tokens)
    before = [(event.row, event.token) for event in generate(model, prompts, sampling)]
    whole = model.decode
    step, graphs = captured(whole)
    model.decode = lambda tokens, *places: (step if tokens.shape[1] == 1 else whole)(tokens, *places)
    assert before == [(event.row, event.token) for event in generate(model, prompts, sampling)]
    return graphs.count

one, even, ragged = [[1, 2, 3]], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6, 7, 8]]
short = {f"{positions} {len(prompts)} {len(prompts[-1])}": graphs(positions, prompts, 50)
         for positions in ("rotary", "learned") for prompts in (one, even, ragged)}
print(json.dumps({"short": short, "long": graphs("rotary", ragged, 500)}))
"""


def test_decoding_is_one_graph() -> None:
    """One within a capacity of the cache; over all its capacities a handful, since lengths become variables."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = {**os.environ, "HEDDLE_UNCHECKED": "1", "PYTHONPATH": path}
    call = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(call, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert set(counts["short"].values()) == {1}, counts
    assert len(counts["short"]) == 6
    assert counts["long"] <= 4
