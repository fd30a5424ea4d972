"""The forward pass is one graph, and stays one from batch to batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.laws.models import AXES, config_of

ROOT = Path(__file__).parents[2]
# A process of its own: the shape checks of the test run cannot be traced.
PROGRAM = """
import json, sys
import torch
from heddle.config import TransformerConfig
from heddle.model import build
from heddle.nn import Layout

made = []
def backend(graph, inputs):
    made.append(len(graph.graph.nodes))
    return graph.forward

def scores(model, tokens, layout=None):
    return model.logits(model(tokens, layout))

counts = {}
forms = {
    "plain": (None, None),
    "padded": (Layout.padded((6, 2), 6), Layout.padded((1, 5), 6)),
    "packed": (Layout.packed([[2, 4], [6]], 6), Layout.packed([[3, 1], [1, 1, 1]], 6)),
}
for name, text in json.load(sys.stdin).items():
    model = build(TransformerConfig.of(text))
    for form, training in [*((form, True) for form in forms), ("plain", False)]:
        model.train(training)
        torch.compiler.reset()
        made.clear()
        compiled = torch.compile(scores, fullgraph=True, backend=backend)
        for seed, layout in enumerate(forms[form]):
            tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(seed))
            found = compiled(model, tokens, layout)
            if not training:
                torch.testing.assert_close(found, scores(model, tokens, layout))
        counts[f"{name} {form} {'training' if training else 'evaluation'}"] = len(made)
print(json.dumps(counts))
"""


def test_a_forward_pass_is_one_graph() -> None:
    config = {
        kernel: config_of(
            kernel=kernel, positions=positions, kv_heads=2, depth=1, dropout=0.1, pad_vocab_to=8
        ).to_dict()
        for kernel, positions in zip(AXES["kernel"], ("rotary", "both", "learned", "rotary"), strict=True)
    }
    environment = {**os.environ, "HEDDLE_UNCHECKED": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(call, env=environment, input=json.dumps(config), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert len(counts) == 16
    assert set(counts.values()) == {1}, counts
