"""Kill a training run at random moments, even during a save, resume it, and compare it with an undisturbed run.

Real processes are killed with SIGKILL, so they cannot clean up. Weights, optimizer state and metrics on disk must be equal byte for
byte.
"""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from heddle.account.machine import usable_precision
from heddle.config.parallel import ParallelConfig
from heddle.config.saved import Chosen, SavedConfig
from heddle.errors import HeddleError, pluralize
from heddle.prove.verdict import Verdict
from heddle.runs.journal import read_lines
from heddle.runs.trainer import Trainer
from heddle.weights.checkpoints import ADAPTER, CHECKPOINTS, CONFIG, SUFFIX
from heddle.weights.files import SLOW_SAVE
from heddle.weights.run import read_config

WORD = "resume"
SAVE_SECONDS = 0.2  # duration of every save, so that a kill can hit it
STEPS = 12  # of the killed copy, with four saves and two evaluations
WEIGHTS, METRICS, DATA = "model.safetensors", "metrics.jsonl", "data"
MISSES = 3  # runs per kill that may end before it
POLL_SECONDS = 0.005  # between two checks of a process
CHILD_PROGRAM = "from heddle.prove.kills import main; main()"
# A process with threads cannot fork safely; with these set to 1, torch starts no threads on import.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Progress = Callable[[str], None]


def fork(work: Callable[[], None], log: Path) -> int:
    """Fork a process that does some work with slow saves, and logs to a file; return its pid.

    This process must not have started threads, see `THREAD_VARIABLES`.
    """
    if child := os.fork():
        return child
    code = 1
    try:
        os.environ[SLOW_SAVE] = str(SAVE_SECONDS)
        log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log_file, stream)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def alive(child: int) -> bool:
    """Whether a child process is still running.

    Raises:
        HeddleError: it failed.
    """
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        check(status)
    return not done


def check(status: int) -> None:
    """Raise if a process failed, by its exit status."""
    if code := os.waitstatus_to_exitcode(status):
        raise HeddleError(f"a run exited with code {code}")


def wait(child: int) -> float:
    """Wait for a process to end; return the seconds it took."""
    started = time.monotonic()
    while alive(child):
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


def unfinished(folder: Path) -> list[Path]:
    """Files that are being written, or were when the writer was killed."""
    return [path for path in folder.glob(".*") if path.suffix in (".partial", ".previous")]


def doing(run: Path) -> str:
    """The activity of a stopped process, from the files of its run."""
    for place, activity in ((run.parent, "preparation"), (run / CHECKPOINTS, "save"), (run, "publication")):
        if unfinished(place):
            return activity
    if not run.exists():
        return "start"
    if (run / WEIGHTS).exists():
        return "end"
    return "training" if (run / METRICS).exists() else "start of training"


def kill(child: int, run: Path, in_save: bool) -> str | None:
    """Kill a process and return its activity; None if it had already ended.

    With `in_save`, a process outside a save continues, and is killed during the next one.
    """
    while True:
        os.kill(child, signal.SIGSTOP)
        done, status = os.waitpid(child, os.WUNTRACED)
        if done and not os.WIFSTOPPED(status):
            check(status)
            return None
        activity = doing(run)
        if in_save and activity != "save":
            os.kill(child, signal.SIGCONT)
            time.sleep(2 * POLL_SECONDS)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return activity


def until(child: int, ready: Callable[[], bool]) -> bool:
    """Wait for a condition; return False if the process ended first."""
    while not ready():
        if not alive(child):
            return False
        time.sleep(POLL_SECONDS)
    return True


def inside_save(child: int, run: Path, rng: random.Random) -> bool:
    """Wait for a random moment of the next save; return False if the process ended first."""
    is_saving = until(child, lambda: bool(unfinished(run / CHECKPOINTS)))
    time.sleep(rng.uniform(0, SAVE_SECONDS * 0.8) if is_saving else 0)
    return is_saving


def after(seconds: float) -> Callable[[], bool]:
    """A condition: so many seconds have passed since this call."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def after_step(run: Path, step: int) -> Callable[[], bool]:
    """A condition: a process started after this call has done a step."""
    metrics = run / METRICS
    previous_inode = metrics.stat().st_ino if metrics.exists() else None

    def has_stepped() -> bool:
        # A resumed trainer writes a new metrics file, without the steps that it repeats.
        if not metrics.exists() or metrics.stat().st_ino == previous_inode:
            return False
        return any(line["step"] >= step for line in read_lines(metrics))

    return has_stepped


def saved(run: Path) -> int:
    """The step of the newest checkpoint."""
    steps = [int(path.name.removeprefix("step-")) for path in run.glob(f"{CHECKPOINTS}/step-*")]
    return max(steps, default=0)


def differences(run: Path, expected: Path) -> list[str]:
    """Files of a killed run that differ from those of an undisturbed one, and partial files left behind.

    All tensors of the last checkpoint are compared, those of every process of several.
    """
    last_checkpoint = f"{CHECKPOINTS}/step-{saved(expected)}"
    tensors = {file.name for each in (run, expected) for file in (each / last_checkpoint).glob(f"*{SUFFIX}")}
    compared = (WEIGHTS, ADAPTER, METRICS, *(f"{last_checkpoint}/{name}" for name in sorted(tensors)))
    different = [name for name in compared if _content(run / name) != _content(expected / name)]
    return different + [path.name for path in run.rglob(".*") if path.suffix in (".partial", ".previous")]


def _content(file: Path) -> Any:
    """What a file has, of tensors without their metadata, whose order differs in every process; None without a file."""
    if not file.exists():
        return None
    data = file.read_bytes()
    if file.suffix != SUFFIX:
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:end])
    tensors.pop("__metadata__", None)
    return tensors, data[end:]


def save_every(steps: int) -> int:
    """Steps between checkpoints of a copy."""
    return max(1, steps // 4)


def short_copy(run: Path, place: Path) -> Path:
    """Copy a run to before its first step, with its data, seed, model and schedule, but few steps.

    Raises:
        HeddleError: the run was not trained here.
    """
    config = read_config(run)
    chosen = config.chosen
    if chosen is None or config.train is None:
        raise HeddleError(f"{run} was not trained here")
    steps = min(chosen.steps, STEPS)
    short: dict[str, object] = {
        "steps": steps,
        "warmup": min(chosen.warmup, steps // 2),
        "save_every": save_every(steps),
        "evaluate_every": max(1, steps // 2),
        "compile": False,
        "device": "cpu",
        "precision": usable_precision(chosen.precision),
    }
    place.mkdir(parents=True)
    for file in run.iterdir():
        if (
            file.is_file()
            and file.name not in (WEIGHTS, ADAPTER, METRICS, CONFIG)
            and file.suffix in (".json", ".safetensors")
        ):
            copyfile(file, place / file.name)
    for name in ("manifest.json", "proof.json"):
        (place / name).unlink(missing_ok=True)
    (place / DATA).symlink_to((run / DATA).resolve(), target_is_directory=True)
    copied: Chosen = chosen.model_copy(update=short)
    alone = config.model_copy(update={"chosen": copied, "parallel": ParallelConfig()})  # one process trains the copy
    (place / CONFIG).write_text(alone.to_json(), encoding="utf-8")
    return place


class MinimalTrainer(Trainer):
    """A trainer without samples and with a short final evaluation, which are not compared."""

    def samples(self, seeds: Sequence[int], tokens: int = 60) -> list[str]:
        """No samples."""
        return []


def train(run: Path) -> None:
    """Train a run from its latest checkpoint to its end; this is the work of the killed processes."""
    trainer = MinimalTrainer(run)
    trainer.ending = trainer.probe
    trainer.run()


def check_resume(run: Path, kills: int, seed: int = 0, progress: Progress = lambda line: None) -> Verdict:
    """Train short copies of a run, kill and resume them, and compare them with an undisturbed copy.

    This happens in a child process without threads, which can fork instead of starting Python for every kill.

    Args:
        run: a trained run with its `data/`; it is not changed.
        kills: number of kills.
        seed: of the random moments.
        progress: called with a line before each copy starts.
    """
    if not kills:
        return Verdict(WORD, "NOT CHECKED", detail="use --kills 3 to kill and resume copies of the run")
    if not hasattr(os, "fork"):
        return Verdict(WORD, "NOT CHECKED", detail="this system cannot fork")
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **dict.fromkeys(THREAD_VARIABLES, "1")}
    call = [sys.executable, "-c", CHILD_PROGRAM, str(run), str(kills), str(seed)]
    verdict = Verdict(WORD, "DIFFERENT", inf, detail="the kill process ended without a result")
    with subprocess.Popen(call, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if isinstance(message, str):
                progress(message)
            else:
                verdict = Verdict(**message)
    return verdict


def main() -> None:
    """The child process of `check_resume`, with its arguments; progress and the verdict are printed as JSON lines."""
    importlib.import_module("torch._dynamo")  # optimizers import it, which would take seconds in every fork
    run, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def emit(message: object) -> None:
        print(json.dumps(message), flush=True)

    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        try:
            verdict = _kill_and_resume(run, Path(folder), kills, random.Random(seed), emit)
        except HeddleError as error:
            last_log_line = log.read_text().strip().splitlines()[-1:] if log.exists() else []
            verdict = Verdict(WORD, "DIFFERENT", inf, detail=": ".join([str(error), *last_log_line]))
    emit(asdict(verdict))


def _kill_and_resume(run: Path, place: Path, kills: int, rng: random.Random, progress: Progress) -> Verdict:
    kill_counts, number = Counter[str](), 0

    def begin(copy: Path) -> int:
        return fork(partial(train, copy), place / "log.txt")

    progress(f"{WORD}: an undisturbed copy")
    expected = short_copy(run, place / "expected" / "run")
    duration = wait(begin(expected))
    steps = saved(expected)
    current = short_copy(run, place / "0" / "run")
    while (killed := sum(kill_counts.values())) < kills:
        progress(f"{WORD}: kill {killed + 1} of {kills}")
        in_save, anywhere = killed % 3 == 0, killed % 3 == 2
        # After the first checkpoint, so that there is something to lose.
        step = rng.randint(min(max(saved(current), save_every(steps) + 1), steps), steps)
        ready = after(rng.uniform(0, duration)) if anywhere else after_step(current, step)
        child = begin(current)
        is_running = until(child, ready) and (not in_save or inside_save(child, current, rng))
        activity = kill(child, current, in_save) if is_running else None
        if activity is not None:
            kill_counts[activity] += 1
        elif different := differences(current, expected):
            return _different(different, kill_counts)
        elif number == MISSES * kills:
            return Verdict(WORD, "NOT CHECKED", detail="the steps are so short that every copy ended before a kill")
        else:
            number += 1
            current = short_copy(run, place / str(number) / "run")
    progress(f"{WORD}: the last run")
    wait(begin(current))
    if different := differences(current, expected):
        return _different(different, kill_counts)
    copies = "a copy" if number == 0 else f"{number + 1} copies"
    comparison = (
        f"compared with an undisturbed copy of {steps} steps: weights, optimizer and metrics are equal byte for byte"
    )
    detail = f"{_describe_kills(kill_counts)} of {copies} on the CPU, {comparison}{_elsewhere(read_config(run))}"
    return Verdict(WORD, "EXACT", detail=detail)


def _elsewhere(config: SavedConfig) -> str:
    """What copies on the CPU do not show of a run that was trained on a GPU."""
    assert config.train is not None
    assert config.chosen is not None
    device = config.chosen.device
    if device == "cpu" or config.train.deterministic:
        return ""
    exactly = ", and bit for bit with deterministic = true alone" if device == "cuda" else ""
    return f"; on {device}, the run repeats its numbers up to rounding{exactly}"


def _describe_kills(kill_counts: Counter[str]) -> str:
    activities = ", ".join(f"{count} in {activity}" for activity, count in kill_counts.items())
    return f"{pluralize(sum(kill_counts.values()), 'kill')} ({activities})"


def _different(different: Sequence[str], kill_counts: Counter[str]) -> Verdict:
    return Verdict(WORD, "DIFFERENT", inf, detail=f"{', '.join(different)} differ after {_describe_kills(kill_counts)}")
