"""What each of several processes holds at the start: its parts of the same weights, bit for bit, and no more than those.

`python -m tests.parallel.full` starts more.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config.run import RunConfig
from heddle.prove.kills import MinimalTrainer
from heddle.runs import prepare
from tests import running
from tests.parallel import starts
from tests.parallel.starting import on_mesh, peaks
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

# What each rank holds is measured for these.
HELD: dict[int, list[starts.Case]] = {
    2: [
        *((name, {}) for name in ("new", "continued", "adapters")),
        *(("start", mesh) for mesh in ({"tensor": 2}, {"pipeline": 2})),
        ("new", {"replicate": 2}),
    ],
    4: [("new", {"tensor": 2}), ("start", {"pipeline": 2})],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """New runs, and what one process holds at their start."""
    return starts.prepared(tmp_path_factory.mktemp("starting"))


@pytest.mark.thorough
@pytest.mark.parametrize("processes", starts.SOME)
def test_all_weights_and_buffers_are_those_of_one_process(
    processes: int, runs: dict[str, Path], tmp_path: Path
) -> None:
    starts.check(processes, starts.SOME[processes], runs, tmp_path)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a model of four blocks: new, with a checkpoint, from the weights of another run, with adapters on these."""
    place = tmp_path_factory.mktemp("wide")
    corpus, sizes = running.write_corpus(place), {**running.SIZES, "dim": 64, "depth": 4}
    train: dict[str, Any] = {**running.TRAIN, "batch": 16, "accumulate": 4, "steps": 1}
    made = {name: place / name for name in ("new", "continued", "start", "adapters")}
    with pytest.MonkeyPatch.context() as patch:
        running.make_quick(patch)
        for name, run in made.items():
            start = {"from": str(made["continued"])} if name in ("start", "adapters") else {}
            data = {"sources": [str(corpus)], **({} if start else {"tokenizer": "bytes"})}
            lora = {"lora": {"rank": 2}} if name == "adapters" else {}
            prepare(RunConfig.of({"data": data, "model": {**sizes, **start}, "train": {**train, **lora}}), run)
            if name == "continued":
                MinimalTrainer(run).run()
    return made


@pytest.mark.parametrize("processes", [2, *thorough(4)])
def test_a_process_holds_its_parts_and_one_more_tensor(processes: int, wide: dict[str, Path], tmp_path: Path) -> None:
    """The profiler counts the files of weights too, which are mapped."""
    cases = HELD[processes]
    runs = [on_mesh(wide[name], tmp_path / str(number), mesh) for number, (name, mesh) in enumerate(cases)]
    files = {name: sum(file.stat().st_size for file in mapped(run)) for name, run in wide.items()}
    held = peaks(processes, *runs)
    assert len(held) == processes * len(runs)
    for each in held:
        name, _ = cases[each["run"]]
        assert each["peak"] <= each["end"] + each["largest"] + files[name], each
        assert each["end"] <= each["parts"] * (3 if name == "continued" else 1) + each["largest"], each


def mapped(run: Path) -> list[Path]:
    """The files of weights that are read when a run is opened."""
    return [*run.glob("start.safetensors"), *run.glob("checkpoints/*/*.safetensors")]
