"""Several processes save shards while they train; any layout continues from them, and whatever happens leaves good checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as load_shards

import heddle
from heddle.config.run import RunConfig
from heddle.errors import HeddleError
from heddle.prove.kills import MinimalTrainer
from heddle.runs import extend, prepare
from heddle.weights import average, load, newest_valid, read_state
from heddle.weights.checkpoints import checkpoints
from tests import running
from tests.parallel.cases import launch
from tests.parallel.resharding import LAYOUTS, losses, on_layout, trained
from tests.running import Begin
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SETTINGS: dict[str, Any] = {"steps": 6, "save_every": 3, "evaluate_every": 6, "optimizer": "muon", "ema": 0.5}
SETTINGS |= {"batch": 8, "accumulate": 2}  # for four processes, and the micro-batches of a pipeline
CONTINUED = ("1", "2", "4", "2x2", "2 PP", "2x2 PP TP")
MICRO_BATCHES = {"1": 1, "2 PP": 4}  # in which these layouts continue
DEPTH = {"depth": 3}  # which two stages do not divide equally
KINDS: dict[str, dict[str, Any]] = {
    "average": {"optimizer": "adamw", "ema": None, "average": 2},
    "best": {"optimizer": "adamw", "patience": 1, "evaluate_every": 3},
    "adapters": {"optimizer": "adamw", "lora": {"rank": 2}},
    "pipeline": {"optimizer": "adamw", "patience": 1, "evaluate_every": 3},
    "adapters, pipeline": {"optimizer": "adamw", "lora": {"rank": 2, "layers": ["*.q", "*.down"]}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that two processes trained, and those that they copied: the kinds have yet to be trained, the first has been."""
    place = tmp_path_factory.mktemp("saving")
    corpus = running.write_corpus(place)
    with pytest.MonkeyPatch.context() as patch:
        running.make_quick(patch)
        prepare(running.run_config(corpus, model=DEPTH, **SETTINGS), place / "new")
        MinimalTrainer(place / "new").run()
        for name, settings in KINDS.items():
            start = {"model": {"from": str(place / "new")}} if "lora" in settings else {}
            config = {"data": {"sources": [str(corpus)]}, "model": {**running.SIZES, **DEPTH}, **start}
            if not start:
                config["data"]["tokenizer"] = "bytes"
            prepare(RunConfig.of({**config, "train": {**running.TRAIN, **SETTINGS, **settings}}), place / f"new {name}")
    new = {"run": place / "new", **{name: place / f"new {name}" for name in KINDS}}
    made = {name: on_layout(run, place / name, "2 PP" if "pipeline" in name else "2") for name, run in new.items()}
    trained("2", *made.values())
    return made | {f"new {name}": run for name, run in new.items()}


@pytest.fixture
def saved(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that two processes trained."""
    return shutil.copytree(runs["run"], tmp_path / "saved")


@pytest.mark.thorough
def test_other_layouts_continue(saved: Path, tmp_path: Path) -> None:
    """Losses within 1e-5, and bit for bit on the same layout; `python -m benchmarks.reshard` tries all pairs."""
    runs = {layout: on_layout(saved, tmp_path / f"on {layout}", layout, 3) for layout in CONTINUED}
    for layout, parts in MICRO_BATCHES.items():
        assert extend(runs[layout], {"train.accumulate": parts}) == [f"accumulate: 2 -> {parts}"]
    trained("2", runs["2"], runs["2 PP"])
    trained("4", *(run for layout, run in runs.items() if LAYOUTS[layout][0] == 4))
    MinimalTrainer(runs["1"]).run()
    assert open_step(on_layout(runs["2x2 PP TP"], tmp_path / "alone", "1", 6)) == 6
    expected = losses(saved, after=3)
    for layout, run in runs.items():
        assert losses(run).keys() == expected.keys()
        for step, numbers in losses(run).items():
            assert numbers == pytest.approx(expected[step], rel=0, abs=0 if layout == "2" else 1e-5), (layout, step)
    one, two = (load_file(run / "model.safetensors") for run in (saved, runs["2"]))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def open_step(run: Path) -> int:
    """The step that a run continues from on one process."""
    session = heddle.runs.open_session(run)
    assert session.run.hold is not None
    session.run.hold.release()
    return session.step


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_are_a_checkpoint_like_any_other(saved: Path, begin: Begin) -> None:
    """Its weights are loaded and averaged, torch reads it, and each file is in its manifest."""

    folder, alone = saved / "checkpoints/step-6", begin("alone", model=DEPTH, **SETTINGS)
    MinimalTrainer(alone).run()
    expected, state = read_state(alone / "checkpoints/step-6"), read_state(folder)
    for tensors, others in ((expected.model, state.model), (expected.optimizer, state.optimizer)):
        assert tensors.keys() == others.keys()
        for name, value in tensors.items():
            torch.testing.assert_close(others[name], value, rtol=0, atol=1e-4, msg=name)
    assert state.state == expected.state
    published = load_file(saved / "model.safetensors")
    loaded = load(folder, "cpu").model.state_dict()
    assert all(
        torch.equal(published[name], value) and torch.equal(value, state.model[name]) for name, value in loaded.items()
    )
    before = read_state(saved / "checkpoints/step-3").model
    for name, value in average(saved, 2).items():
        torch.testing.assert_close(value, (before[name] + state.model[name]) / 2)
    empty = {name: torch.full_like(value, -7) for name, value in (state.model | state.optimizer).items()}
    load_shards(empty, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert all(torch.equal(value, (state.model | state.optimizer)[name]) for name, value in empty.items())
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {file.name for file in folder.iterdir()} == {*listed, "manifest.json"}
    assert {name for name in listed if name.endswith("safetensors")} == {
        f"{name}-rank-{rank}.safetensors" for name in ("model", "optimizer") for rank in range(2)
    }


@pytest.mark.thorough
def test_a_checkpoint_with_a_damaged_shard_is_skipped(saved: Path) -> None:
    newest, older = (path for _, path in checkpoints(saved))
    assert newest_valid(saved) == (newest, [])
    for name in ("model-rank-1.safetensors", "optimizer-rank-1.safetensors"):
        file = newest / name
        data = file.read_bytes()
        for damaged, problem in (
            (data[:-1] + bytes([data[-1] ^ 1]), "sha256 differs"),
            (data[:-1], "size is"),
            (None, "missing"),
        ):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            checkpoint, (note,) = newest_valid(saved)
            assert checkpoint == older
            assert f"{newest} is skipped: {name}: {problem}" in note
        file.write_bytes(data)
    manifest = json.loads((newest / "manifest.json").read_text())
    del manifest["files"]["model-rank-1.safetensors"]
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert newest_valid(saved) == (
        older,
        [f"{newest} is skipped: manifest.json does not list model-rank-1.safetensors"],
    )
    (newest / "model-rank-1.safetensors").unlink()
    with pytest.raises(HeddleError, match=r"the weights do not match its config"):
        load(newest, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_run_is_that_of_one_process(kind: str, runs: dict[str, Path]) -> None:
    run, together = runs[f"new {kind}"], runs[kind]
    MinimalTrainer(run).run()
    names = [sorted(file.name for file in each.iterdir()) for each in (run, together)]
    assert names[0] == names[1]
    weights = [json.loads((each / "manifest.json").read_text())["weights"] for each in (run, together)]
    assert weights[0]["kind"] == weights[1]["kind"]
    assert weights[0]["steps"] == weights[1]["steps"]
    one, two = (load(each, "cpu").model.state_dict() for each in (run, together))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-4, msg=name)
    last = load(together / "checkpoints/step-6", "cpu").model.state_dict()
    alone = load(run / "checkpoints/step-6", "cpu").model.state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(last[name], value, rtol=0, atol=1e-4, msg=name)


def test_training_continues_while_a_checkpoint_is_written(runs: dict[str, Path], tmp_path: Path) -> None:
    """The next steps end before it is complete; what it has is not what they made of the weights."""
    run, slow = runs["run"], on_layout(runs["new run"], tmp_path / "slow", "2")
    lines = launch(2, "tests.parallel.saving", str(slow), "watched").splitlines()
    assert lines[:5] == ["1 False", "2 False", "3 False", "4 True", "5 True"]
    assert losses(slow) == losses(run)
    for step in (3, 6):
        (model, optimizer, _), (other, others, _) = (
            read_state(each / f"checkpoints/step-{step}") for each in (run, slow)
        )
        assert all(torch.equal(value, (other | others)[name]) for name, value in (model | optimizer).items())


@pytest.mark.parametrize(
    ("how", "problem"), [("full", "File too large"), *thorough(("unwritable", "Read-only file system"))]
)
def test_a_rank_that_cannot_write_stops_the_run(how: str, problem: str, begin: Begin) -> None:
    run = begin(**{**SETTINGS, "steps": 40})
    (line,) = launch(2, "tests.parallel.saving", str(run), how).splitlines()
    assert line == (
        f"rank 1: cannot write {run}/checkpoints/step-3: {problem}; nothing was changed. "
        f"Once it can be written, continue with: heddle train --resume {run}"
    )
    assert list(run.glob("checkpoints/*")) == []
    assert max(losses(run)) <= 6  # the next save at the latest


@pytest.mark.thorough
def test_a_kill_inside_a_save_loses_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    """Before it has its name, and after; the run then ends as if nothing had happened."""
    run, killed = runs["run"], on_layout(runs["new run"], tmp_path / "killed", "2")
    valid = []
    for moment in ("1", "named"):
        with pytest.raises(AssertionError):
            launch(2, "tests.parallel.saving", str(killed), f"killed {moment}")
        checkpoint, notes = newest_valid(killed)
        valid.append(None if checkpoint is None else checkpoint.name)
        assert not notes
    assert valid == [None, "step-3"]
    trained("2", killed)
    assert losses(killed) == losses(run)
    assert not list(killed.rglob(".*"))
    one, two = (load_file(each / "model.safetensors") for each in (run, killed))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
