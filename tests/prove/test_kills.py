"""Copies of a run are killed and resumed: a sound trainer loses nothing, and what an unsound one loses is found."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from heddle.errors import HeddleError
from heddle.prove import kills

from .tasks import directory

FORGETS = "from heddle.train.optimizer import Optimizer; Optimizer.load_state = lambda self, state: None; "


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "word"), [("", "EXACT"), (FORGETS, "DIFFERENT")], ids=["sound", "it forgets"])
def test_a_killed_run_ends_like_one_left_alone(
    before: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kill, inside a save after some steps; without its optimizer's state it would end elsewhere."""
    run, messages = directory("next token, rotary", tmp_path / "run"), list[str]()
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    monkeypatch.setattr(kills, "CHILD_PROGRAM", before + kills.CHILD_PROGRAM)
    verdict = kills.check_resume(run, 1, seed=1, progress=messages.append)
    assert verdict.word == word, verdict
    assert messages[:2] == ["resume: an undisturbed copy", "resume: kill 1 of 1"]
    assert "1 kill (1 in save)" in verdict.detail
    assert files == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}, "the run stays as it is"


def test_a_process_that_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="a run exited with code 3"):
        kills.check(3 << 8)
    kills.check(0)


def test_without_kills_nothing_is_claimed(tmp_path: Path) -> None:
    assert kills.check_resume(tmp_path, 0).word == "NOT CHECKED"


FILES = (
    "model.safetensors",
    "adapter.safetensors",
    "metrics.jsonl",
    *(f"checkpoints/step-8/{name}.safetensors" for name in ("model", "adapter", "optimizer", "optimizer-rank-1")),
)


def write(file: Path, number: float) -> None:
    """A file that has a number."""
    if file.suffix == ".safetensors":
        save_file({"weight": torch.tensor([number])}, file)
    else:
        file.write_text(f"{number}")


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_the_last_step_is_compared(name: str, tmp_path: Path) -> None:
    """Another content, or none; of an earlier checkpoint, which the other run may have removed, nothing."""
    runs = tmp_path / "killed", tmp_path / "alone"
    for run in runs:
        for file in (*FILES, "checkpoints/step-4/model.safetensors"):
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            write(run / file, 0.0)
    killed, _ = runs
    write(killed / "checkpoints/step-4/model.safetensors", 1.0)
    assert kills.differences(*runs) == []
    write(killed / name, 1.0)
    assert kills.differences(*runs) == [name]
    (killed / name).unlink()
    assert kills.differences(*runs) == [name]


def test_metadata_of_tensors_are_not_compared(tmp_path: Path) -> None:
    """safetensors writes them in another order in every process."""
    for run, names in (("killed", "ab"), ("alone", "ba")):
        folder = tmp_path / run / "checkpoints/step-8"
        folder.mkdir(parents=True)
        header = json.dumps({"__metadata__": {name: name.upper() for name in names}}).encode()
        (folder / "model-rank-0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert kills.differences(tmp_path / "killed", tmp_path / "alone") == []


def test_what_is_left_half_written_is_found(tmp_path: Path) -> None:
    for run in ("killed", "alone"):
        (tmp_path / run / "checkpoints" / "step-4").mkdir(parents=True)
    for number, name in enumerate((".step-8.partial", ".step-4.previous"), 1):
        (tmp_path / "killed/checkpoints" / name).mkdir()
        assert len(kills.differences(tmp_path / "killed", tmp_path / "alone")) == number
