"""Some of several processes stop, end, fail, differ or never start: the others name them, and the run can go on."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.parallel.board import Board, Lost, call_roll
from tests import programs

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

MEMBER = r"rank {} on \S+ \(process \d+\)"
LIMIT = 1.5  # seconds, the step_timeout of the scenes


def scene(name: str, folder: Path, *words: str) -> dict[str, Any]:
    """What came of it."""
    result: dict[str, Any] = json.loads(
        programs.forked("parallel.imported", "parallel.scenes", name, str(folder), *words)
    )
    return result


def scenes(folder: Path, *scenes: tuple[str, ...]) -> list[dict[str, Any]]:
    """What came of each, all at once: their processes mostly wait."""
    words = ("parallel.imported", "parallel.scenes", "several", str(folder), json.dumps(scenes))
    results: list[dict[str, Any]] = json.loads(programs.forked(*words))
    return results


def test_a_rank_that_stops_or_ends_is_named(tmp_path: Path) -> None:
    """By rank 0 or, without it, by the next one, within the time-out and ten seconds."""
    cases = [
        (1, "SIGSTOP", r"heddle: step \d+: {} has not answered for 1.5 s \(step_timeout\); no checkpoint exists yet\n"),
        (0, "SIGSTOP", r"heddle \(rank 1\): step \d+: {} or the launcher has not answered; no checkpoint exists yet\n"),
        (1, "SIGKILL", r"heddle: step \d+: {} has ended; no checkpoint exists yet\n"),
    ]  # fmt: skip
    results = scenes(tmp_path, *(("gone", str(victim), how) for victim, how, _ in cases))
    for (victim, _, line), done in zip(cases, results, strict=True):
        assert done["code"] == 2
        assert done["seconds"] < LIMIT + 10
        assert re.fullmatch(line.format(MEMBER.format(victim)), done["errors"][f"err-{1 - victim}"])
        assert done["errors"][f"err-{victim}"] == ""
        assert done["steps"] == []  # each process has a part of the last steps only


@pytest.mark.thorough
def test_a_rank_that_stops_while_it_saves_is_named(tmp_path: Path) -> None:
    """The others wait for a checkpoint as long as for a start, but not once a step has failed."""
    for victim, done in enumerate(scenes(tmp_path, ("saves", "0"), ("saves", "1"))):
        assert done["code"] == 2
        assert done["seconds"] < LIMIT + 10
        line = rf"step \d+: {MEMBER.format(victim)} has not answered for {LIMIT} s \(step_timeout\)"
        assert re.search(rf"{line}; the last good checkpoint is \S+step-4\n", done["errors"][f"err-{1 - victim}"])
        assert done["steps"] == [4]
    assert not list((tmp_path / "1" / "run").rglob(".*"))  # a stopped process removes nothing


@pytest.mark.thorough
def test_rank_0_may_publish_longer_than_a_step(tmp_path: Path) -> None:
    done = scene("publishes", tmp_path)
    assert done["codes"] == [0, 0]
    assert done["errors"] == {"err-0": "", "err-1": ""}
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.thorough
def test_rank_0_that_stops_while_it_evaluates_is_named(tmp_path: Path) -> None:
    """The others wait for an evaluation as long as for a start, but not for a process that is stopped."""
    done = scene("evaluates", tmp_path)
    assert done["code"] == 2
    assert done["seconds"] < LIMIT + 10
    line = rf"heddle: {MEMBER.format(0)} has given no sign of life for 1.5 s \(step_timeout\)\n"
    assert re.search(line, done["logs"]["rank-1.txt"])
    assert re.fullmatch(line, done["errors"]["err-1"])


def test_sigterm_to_one_rank_saves_and_ends_all(tmp_path: Path) -> None:
    done = scene("terminated", tmp_path)
    assert done["codes"] == [143, 143]
    (step,) = done["steps"]
    assert f"stopped at step {step} of 1000000, saved; continue with: heddle train --resume" in done["output"]
    assert done["errors"] == {"err-0": "", "err-1": ""}
    for rank in range(2):
        assert re.match(
            rf"\S+ start 1: {MEMBER.format(rank)} of 2, heddle \S+, torch \S+\n", done["logs"][f"rank-{rank}.txt"]
        )


def test_a_start_that_cannot_work_is_refused_once_and_leaves_nothing(tmp_path: Path) -> None:
    cases = [
        ("version", r"{} has heddle = 0.0.9, but rank 0 on \S+ has \S+"),
        ("settings", r"{} has train.steps = 9, but rank 0 on \S+ has 5"),
        ("batch", r"batch = 3 cannot be divided among 2 processes: choose a multiple of 2"),
        ("words", r"settings: train.steps = 'x': input should be a valid integer, .*"),
        ("words of rank 0", r"settings: train.steps = 'x': input should be a valid integer, .*"),
        ("words of rank 1", r"{} failed: settings: train.steps = 'x': input should be a valid integer, .*"),
        ("cards", r"device = 'cuda:0': 2 processes take a GPU each: set device = cuda"),
        ("command", r"`heddle eval` is for one process, but torchrun started 2: start it without torchrun"),
        ("heads", r"parallel: tensor = 2 cannot divide decoder.blocks.0.mixer: its 3 heads are not a multiple of 2"),
    ]
    results = scenes(tmp_path, *(("refused", what) for what, _ in cases))
    for (what, line), done in zip(cases, results, strict=True):
        assert done["codes"] == [2, 2], what
        assert re.fullmatch(rf"heddle: {line.format(MEMBER.format(1))}\n", done["errors"]["err-0"])
        assert done["errors"]["err-1"] == done["output"] == ""
        assert done["left"] == ["err-0.txt", "err-1.txt", "out-0.txt", "out-1.txt", "text.txt"]


def test_a_rank_whose_copy_of_the_run_differs_is_refused(tmp_path: Path) -> None:
    done = scene("refused", tmp_path, "text")
    assert done["codes"] == [2, 2]
    line = rf"heddle: {MEMBER.format(1)} has tokenizer = \w+, but rank 0 on \S+ has \w+\n"
    assert re.fullmatch(line, done["errors"]["err-0"])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.thorough
def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    lines = [
        r"heddle: missing after 1 s \(start_timeout\): rank 1 of 2\n",
        r"heddle \(rank 1\): missing after 1 s \(start_timeout\): rank 0, which should answer at 127.0.0.1:\d+\n",
    ]
    for rank, done in enumerate(scenes(tmp_path, ("alone", "0"), ("alone", "1"))):
        assert done["code"] == 2
        assert re.fullmatch(lines[rank], done["errors"][f"err-{rank}"])
        assert done["left"] == [f"err-{rank}.txt", f"out-{rank}.txt", "text.txt"]


@pytest.mark.thorough
def test_an_error_of_another_rank_is_named_and_its_log_has_all_of_it(tmp_path: Path) -> None:
    done = scene("fails", tmp_path, "step")
    assert done["codes"] == [2, 1]
    line = rf"heddle: step 5: {MEMBER.format(1)} failed: a broken loss; the last good checkpoint is \S+step-4\n"
    assert re.fullmatch(line, done["errors"]["err-0"])
    assert done["errors"]["err-1"] == ""
    assert "Traceback" in done["logs"]["rank-1.txt"]
    assert re.search(line, done["logs"]["rank-0.txt"])


@pytest.mark.thorough
def test_a_rank_that_runs_out_of_memory_is_named_once(tmp_path: Path) -> None:
    """With the step and what is left, each of them once."""
    for rank, done in enumerate(scenes(tmp_path, ("fails", "memory-0"), ("fails", "memory-1"))):
        assert done["codes"] == [2, 2]
        who = "" if rank == 0 else f"{MEMBER.format(1)} failed: "
        what = "step 5: out of memory with 2 rows of 16 tokens at a time: use [^;]*"
        left = r"the last good checkpoint is \S+step-4; continue with: [^;]*"
        assert re.fullmatch(f"heddle: {who}{what}; {left}\n", done["errors"]["err-0"])
        assert done["errors"]["err-1"] == ""


@pytest.mark.thorough
def test_a_full_disk_of_rank_0_ends_all_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    done = scene("fails", tmp_path, "save")
    assert done["codes"] == [2, 2]
    assert re.match(
        r"heddle: rank 0: disk full while writing step-4.*continue with: heddle train --resume", done["errors"]["err-0"]
    )
    assert done["steps"] == []
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_logs_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    done = scene("logs", tmp_path)
    assert done["codes"] == [0, 0]
    assert re.fullmatch(
        rf"heddle: {MEMBER.format(0)} cannot write \S+rank-0.txt: Is a directory; it goes on\n", done["errors"]["err-0"]
    )
    assert done["errors"]["err-1"] == ""
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.thorough
def test_two_machines_meet_and_start_again_together(tmp_path: Path) -> None:
    """Their agents count restarts apart: a rank of the second ends, and the first has restarted nothing by its own count."""
    done = json.loads(programs.forked("parallel.imported", "parallel.nodes", str(tmp_path)))
    if "skipped" in done:
        pytest.skip(f"no network namespaces here: {done['skipped']}")
    assert done["codes"] == [0, 0]
    assert done["finished"]
    assert list(dict.fromkeys(done["steps"])) == list(range(1, 13))
    for rank in range(2):
        assert re.findall(r"start (\d):", done["logs"][f"rank-{rank}.txt"]) == ["1", "2"]


def test_the_roll_is_that_of_the_processes_that_are_there() -> None:
    """A rank that is early reads the roll of those before, and waits for that of its own start."""
    torch_distributed: Any = torch.distributed
    job, count = torch_distributed.HashStore(), 3
    with ThreadPoolExecutor(count) as pool:
        for number in (1, 2):
            others = [pool.submit(call_roll, job, rank, count, 10.0, 1.0) for rank in range(1, count)]
            time.sleep(0.2)
            assert not any(other.done() for other in others)
            boards = [call_roll(job, 0, count, 10.0, 1.0), *(other.result() for other in others)]
            assert [board.number for board in boards] == [number] * count
            assert all(board.members == boards[0].members for board in boards)


def test_of_three_ranks_the_one_that_is_missing_or_differs_is_named_by_rank_0() -> None:
    torch_distributed: Any = torch.distributed
    count = 3

    def start(rank: int, store: Any) -> Board | Lost:
        try:
            return call_roll(store, rank, count, 1.0, 1.0)
        except Lost as error:
            return error

    def compare(board: Board | Lost, text: str) -> str:
        assert isinstance(board, Board)
        with pytest.raises(HeddleError) as error:
            board.compare({"data": {"text": text}})
        return str(error.value)

    with ThreadPoolExecutor(count) as pool:
        store = torch_distributed.HashStore()
        errors = list(pool.map(start, range(2), [store] * 2))
        assert [str(error) for error in errors] == ["missing after 1 s (start_timeout): rank 2 of 3"] * 2
        assert [isinstance(error, Lost) and error.speaks for error in errors] == [True, False]
        store = torch_distributed.HashStore()
        boards = list(pool.map(start, range(count), [store] * count))
        lines = list(pool.map(compare, boards, ["warp", "warp", "weft"]))
        assert re.fullmatch(rf"{MEMBER.format(2)} has data.text = weft, but rank 0 on \S+ has warp", lines[0])
        assert lines == lines[:1] * count


def test_torchrun_starts_again_and_the_run_continues_bit_for_bit(tmp_path: Path) -> None:
    """One rank is killed, then another: `heddle train TEXT` goes on with the run that its first start made."""
    done = scene("restarted", tmp_path)
    assert done["killed"] == done["alone"]
    assert "resuming" in done["output"]
    for rank in range(2):
        assert re.findall(r"start (\d):", done["logs"][f"rank-{rank}.txt"]) == ["1", "2", "3"]
    assert sorted(path.name for path in (tmp_path / "killed").iterdir() if path.is_dir()) == ["run"]
