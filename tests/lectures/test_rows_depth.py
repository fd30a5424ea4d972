"""What layers are for: what one computes, what two can that one cannot, and what feed-forwards add; all of it trained."""

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.lessons.tasks import NOT_SCORED, Batch, Task
from heddle.lessons.training import Learned, learn
from heddle.look import AttentionPass, score_heads, trace
from heddle.model import Transformer, build
from tests.programs import ROOT
from tests.running import unchecked

KINDS = 16


def model_of(task: Task, seed: int = 0, dim: int = 16, **block: Any) -> Transformer:
    """One layer of one head; without a feed-forward unless `block` has one."""
    layer = {"mixer": {"kind": "attention", "heads": 1}, "ffn": {"kind": "none"}, "norm": {"kind": "layer"}, **block}
    sizes = {"vocab_size": KINDS, "dim": dim, "context": task.length, "head": {"tied": False}}
    stack = {"depth": 1, "entry": {"positions": "learned"}, "block": layer}
    return build(TransformerConfig.of({**sizes, "initial": {"rule": "xavier"}, "decoder": stack}), seed=seed)


def predecessors(rows: int, generator: torch.Generator) -> Batch:
    """Random tokens; each must tell the one before it."""
    ids = torch.randint(KINDS, (rows, 8), generator=generator)
    targets = torch.full_like(ids, NOT_SCORED)
    targets[:, 1:] = ids[:, :-1]
    return ids, targets


@cache
def map_of_one_layer() -> tuple[float, AttentionPass]:
    """What one layer that tells predecessors gets right, and its map of eight rows that it has not seen."""
    task = Task(KINDS, 8, predecessors)
    model = model_of(task, dim=32)
    with unchecked():
        accuracy = learn(model, task, 50).accuracy
    ids, _ = predecessors(8, torch.Generator().manual_seed(1))
    return accuracy, trace(model, ids, attention="decoder.0.mixer").attention["decoder.0.mixer"]


@pytest.mark.lecture("L1-41")
def test_one_layer_learns_how_a_token_relates_to_the_one_before_it() -> None:
    accuracy, attention = map_of_one_layer()
    assert accuracy > 0.99
    assert float(score_heads(attention).previous) > 0.9


@pytest.mark.lecture("L1-37")
def test_the_diagonal_of_a_trained_map_is_as_strong_as_the_task_makes_it() -> None:
    """Here none but the first token, which sees nothing else, attends to itself: the lecture's "almost always" is no law."""
    _, attention = map_of_one_layer()
    scores, weights = score_heads(attention), attention.weights()[:, 0]
    assert float(scores.diagonal) == pytest.approx(float(weights.diagonal(0, -2, -1).mean()))
    assert float(scores.diagonal) < 0.15  # of which 0.125 are the first token's; equal weights give 0.34
    assert float(scores.previous) == pytest.approx(float(weights.diagonal(-1, -2, -1).mean()))
    assert float(scores.following) == 0


def depths(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe that compares depths."""
    monkeypatch.syspath_prepend(ROOT / "recipes")
    return import_module("depth")


@pytest.mark.thorough
@pytest.mark.lecture("L1-42")
def test_two_layers_learn_what_one_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sign of a row that repeats after an unknown period. Three seeds: 0.96 to 1.00 by two layers, 0.55 to 0.56 by one."""
    recipe = depths(monkeypatch)
    with unchecked():
        one, two = (recipe.trained(depth, 150, seed=0)[1].accuracy for depth in (1, 2))
    assert two > 0.9
    assert one < 0.65


@pytest.mark.lecture("L1-43")
def test_depths_are_compared_at_equal_parameters_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, 2 and 4 layers, and a loss for each; what it says after 300 steps is in docs/results.md."""
    recipe, file = depths(monkeypatch), tmp_path / "depth.json"
    monkeypatch.setattr("sys.argv", ["depth.py", "--seeds", "1", "--steps", "2", "--json", str(file)])
    with unchecked():
        recipe.main()
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["layers"] for row in rows] == [1, 2, 4]
    sizes = [int(row["parameters"].replace(",", "")) for row in rows]
    assert max(sizes) < 1.1 * min(sizes)
    assert all(2 < float(row["loss"]) < 3 for row in rows)
    assert "| layers | width | parameters | loss |" in capsys.readouterr().out


def remembered(seed: int, **ffn: Any) -> Learned:
    """What one layer remembers of a random table: two tokens tell a third, in 256 ways."""
    table = torch.randint(KINDS, (KINDS, KINDS), generator=torch.Generator().manual_seed(100 + seed))

    def draw(rows: int, generator: torch.Generator) -> Batch:
        ids = torch.randint(KINDS, (rows, 2), generator=generator)
        return ids, torch.stack((torch.full((rows,), NOT_SCORED), table[ids[:, 0], ids[:, 1]]), 1)

    task = Task(KINDS, 2, draw)
    with unchecked():
        return learn(model_of(task, seed, ffn=ffn), task, 150, rows=256, seed=seed)


@pytest.mark.thorough
@pytest.mark.lecture("L1-44")
def test_a_feed_forward_with_an_activation_computes_what_attention_cannot() -> None:
    """What is right of a random table of 16 × 16, over three seeds.

    0.70 to 0.87 with ReLU, 0.36 to 0.42 without an activation, 0.31 to 0.50 without a feed-forward.
    """
    wide = {"kind": "mlp", "hidden": 64}
    assert remembered(0, **wide, activation="relu").accuracy > 0.7
    assert remembered(0, **wide, activation="linear").accuracy < 0.55
    assert remembered(0, kind="none").accuracy < 0.55


@pytest.mark.thorough
@pytest.mark.lecture("L2-68")
def test_a_mixture_represents_more_than_the_dense_layer_that_computes_as_much() -> None:
    """Of the same table, with 16 hidden units for each token: three seeds, 0.84 to 0.96 of 16 experts, 0.45 to 0.64 of one layer.

    On text, `recipes/moe.py` compares the two over three seeds: docs/results.md.
    """
    expert = {"kind": "mlp", "hidden": 8, "activation": "relu"}
    assert remembered(0, kind="moe", experts=16, active=2, balance=0.01, expert=expert).accuracy > 0.75
    assert remembered(0, kind="mlp", hidden=16, activation="relu").accuracy < 0.7
