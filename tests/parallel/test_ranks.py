"""Several processes train what one trains: the same global batches, the same losses, one writer."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from heddle.config import MaskedConfig, NextTokenConfig, sized
from heddle.data.corpus import Corpus, Part
from heddle.errors import HeddleError
from heddle.parallel.join import join_ranks
from heddle.parallel.ranks import Ranks
from heddle.runs import Trainer
from heddle.tasks import DataSpec, make_task
from heddle.text import train_tokenizer
from tests import programs
from tests.running import Begin

TOKENIZER = train_tokenizer("bytes", [], special=("[MASK]",))


@pytest.mark.parametrize("kind", [NextTokenConfig, MaskedConfig])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(kind: Any, count: int) -> None:
    text = Part(np.arange(2000, dtype=np.uint16) % 256, 2000, 1, 1)
    model = sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=16)
    task = make_task(kind(), DataSpec(Corpus(text), model, rows=16, seed=3, tokenizer=TOKENIZER))
    for step in (0, 7):
        examples = task.examples(step)
        whole = task.batch(examples)
        parts = [task.batch(examples.part(rank, count)) for rank in range(count)]
        for name in ("tokens", "targets", "weights"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_a_batch_that_ranks_do_not_divide_is_refused() -> None:
    Ranks(0, 2).check_batch(8, 2)
    with pytest.raises(HeddleError, match=r"batch = 6 cannot be divided among 2 processes of accumulate = 2"):
        Ranks(0, 2).check_batch(6, 2)
    with pytest.raises(HeddleError, match=r"batch = 6 cannot be divided among 4 processes: choose a multiple of 4"):
        Ranks(0, 4).check_batch(6, 1)


def test_alone_nothing_is_shared() -> None:
    alone, tensor = Ranks(), torch.ones(2)
    assert alone.leads
    assert alone.sum(tensor) is tensor
    assert alone.share("runs/1") == "runs/1"
    assert alone.gather("a") == ["a"]


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("auto", "torchrun started 2 processes here, each of which needs a GPU, but this machine has 1 GPU: use "
         "--nproc-per-node 1, or device=cpu"),
        ("cuda:0", "device = 'cuda:0': 2 processes take a GPU each: set device = cuda"),
    ],
)  # fmt: skip
def test_processes_need_a_gpu_each(device: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them refuses by itself, before it waits for another."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert join_ranks(device) == Ranks()
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(HeddleError) as error:
        join_ranks(device)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE = 'two' is not a number: several processes need"),
        ("RANK", "", "RANK = '' is not a number: several processes need"),
        ("RANK", "2", "RANK = 2: must be below WORLD_SIZE = 2"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK = '-1' is not a number"),
        ("MASTER_PORT", "x", "MASTER_PORT = 'x' is not a number"),
        ("MASTER_PORT", None, "MASTER_PORT is not set: several processes need RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from"),
        ("MASTER_PORT", "65536", "MASTER_ADDR = '127.0.0.1', MASTER_PORT = 65536: must be the machine of rank 0, and a port of it"),
        ("MASTER_ADDR", None, "MASTER_ADDR = '', MASTER_PORT = 1: must be the machine of rank 0"),
    ],
)  # fmt: skip
def test_what_a_launcher_says_is_checked(
    name: str, value: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, str | None] = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for each, text in (variables | {name: value}).items():
        if text is None:
            monkeypatch.delenv(each, raising=False)
        else:
            monkeypatch.setenv(each, text)
    with pytest.raises(HeddleError) as error:
        join_ranks("cpu", 1.0, 1.0)
    assert str(error.value).startswith(line)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_torchrun_trains_what_one_process_trains(begin: Begin, tmp_path: Path) -> None:
    """Two gloo processes continue a run: the leader alone writes, and losses, scores and weights are those of one process.

    Frozen parameters, checkpointed activations, a moving average and the best evaluation are theirs in common.
    """
    settings: dict[str, Any] = {"groups": [{"parameters": "*.ffn.up.*", "frozen": True}], "ema": 0.5, "patience": 1}
    settings |= {"optimizer": "muon", "learning_rate": 1e-2, "checkpoint_activations": True}
    run = begin(steps=6, evaluate_every=3, accumulate=2, **settings)
    together = shutil.copytree(run, tmp_path / "together")
    Trainer(run).run()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "heddle", "train", "--resume", str(together), "--json"]
    done = subprocess.run(
        command, cwd=programs.ROOT, env=programs.environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"]
    assert json.loads(done.stdout)["published"]["kind"] == "best"
    assert "2 processes" in done.stderr
    one, two = (
        [json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()] for each in (run, together)
    )
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for name in ("loss", "validation_loss"):
        assert [row[name] for row in two if name in row] == pytest.approx(
            [row[name] for row in one if name in row], abs=2e-5
        )
    speeds = [
        [json.loads(line) for line in (each / "speed.jsonl").read_text().splitlines()] for each in (run, together)
    ]
    assert [row["step"] for row in speeds[0]] == [row["step"] for row in speeds[1]] == list(range(1, 7))
    assert {"tokens_per_second", "share_of_peak", "memory"} <= speeds[0][0].keys()
    seconds = [[row.get("collective_seconds") for row in rows] for rows in speeds]
    assert seconds[0] == [None] * 6
    assert [each is not None for each in seconds[1]] == [False, False, True, False, False, False]
    assert 0 < seconds[1][2] < speeds[1][2]["seconds"]
    weights = [load_file(each / "model.safetensors") for each in (run, together)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-4, msg=name)
