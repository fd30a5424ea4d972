"""Checkpoints: whole or not there, the newest ones kept, broken ones left out aloud."""

from pathlib import Path

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.weights import newest_valid, read_state, save_checkpoint
from heddle.weights.checkpoints import checkpoints
from heddle.weights.files import verify

OPTIMIZER = {"moment": torch.arange(3.0), "step": torch.tensor(7)}


def save(run: Path, config: TransformerConfig, step: int, keep: int = 9) -> Path:
    state = {"step": step, "seed": 3}
    return save_checkpoint(run, step, build(config, seed=step).state_dict(), OPTIMIZER, state, keep)


def test_what_was_saved_comes_back(run: Path, tiny: TransformerConfig) -> None:
    path = save(run, tiny, 7)
    model, optimizer, state = read_state(path)
    weights = build(tiny, seed=7).state_dict()
    assert all(torch.equal(model[name], weights[name]) for name in weights)
    assert all(torch.equal(optimizer[name], OPTIMIZER[name]) for name in OPTIMIZER)
    assert state == {"step": 7, "seed": 3}


def test_a_checkpoint_is_complete(run: Path, tiny: TransformerConfig) -> None:
    path = save(run, tiny, 7)
    names = [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "tokenizer.json",
    ]
    assert sorted(file.name for file in path.iterdir()) == names
    assert verify(path) == []


def test_the_newest_are_kept_by_number(run: Path, tiny: TransformerConfig) -> None:
    for step in (8, 9, 10, 100):
        save(run, tiny, step, keep=2)
    assert [step for step, _ in checkpoints(run)] == [100, 10]
    assert not list((run / "checkpoints").glob(".*"))


def test_the_one_just_written_stays(run: Path, tiny: TransformerConfig) -> None:
    """Also where a run was set back and higher steps are still there."""
    for step in (50, 60):
        save(run, tiny, step, keep=2)
    save(run, tiny, 10, keep=2)
    assert [step for step, _ in checkpoints(run)] == [60, 10]
    save(run, tiny, 20, keep=1)
    assert [step for step, _ in checkpoints(run)] == [20]


def test_the_same_step_again_replaces(run: Path, tiny: TransformerConfig) -> None:
    path = save(run, tiny, 7)
    weights = build(tiny, seed=8).state_dict()
    assert save_checkpoint(run, 7, weights, {}, {}, keep=1) == path
    assert torch.equal(read_state(path).model["embedding.weight"], weights["embedding.weight"])
    assert [step for step, _ in checkpoints(run)] == [7]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_broken_newest_one_is_left_out_aloud(run: Path, tiny: TransformerConfig, name: str, damage: str) -> None:
    older, newest = save(run, tiny, 5), save(run, tiny, 6)
    if damage == "cut":
        (newest / name).write_bytes((newest / name).read_bytes()[:-3])
    else:
        (newest / name).unlink()
    checkpoint, notes = newest_valid(run)
    assert checkpoint == older
    assert len(notes) == 1
    assert str(newest) in notes[0]
    assert name in notes[0]


def test_no_valid_checkpoint(run: Path, tiny: TransformerConfig) -> None:
    assert newest_valid(run) == (None, [])
    path = save(run, tiny, 5)
    (path / "manifest.json").write_text('{"files": {}}')
    checkpoint, notes = newest_valid(run)
    assert checkpoint is None
    assert "does not list model.safetensors" in notes[0]


def test_other_names_are_no_checkpoints(run: Path, tiny: TransformerConfig) -> None:
    save(run, tiny, 5)
    for name in ("step-x", "step-", "old-step-9", ".step-9.0123abcd.partial"):
        (run / "checkpoints" / name).mkdir()
    assert [step for step, _ in checkpoints(run)] == [5]


def test_a_checkpoint_needs_a_run(tmp_path: Path, tiny: TransformerConfig) -> None:
    with pytest.raises(HeddleError, match=r"no config\.json"):
        save(tmp_path, tiny, 5)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_damaged_state_is_one_line(run: Path, tiny: TransformerConfig, text: str) -> None:
    path = save(run, tiny, 5)
    (path / "state.json").write_text(text)
    with pytest.raises(HeddleError, match=r"state\.json.*use another checkpoint") as caught:
        read_state(path)
    assert "\n" not in str(caught.value)
