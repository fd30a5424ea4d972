"""A training run that is killed at any moment, even inside a save, and resumed, ends like one that was not.

The processes are real ones and so are the kills (SIGKILL): nothing can be put in order before the process is gone. What is
compared is on the disk: weights, the optimizer's state and metrics, byte by byte.
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

from heddle.account.machine import usable_precision
from heddle.config.saved import Chosen
from heddle.errors import HeddleError, pluralize
from heddle.prove.verdict import Verdict
from heddle.runs.journal import read_lines
from heddle.runs.trainer import Trainer
from heddle.weights.checkpoints import ADAPTER, CHECKPOINTS, CONFIG, OPTIMIZER
from heddle.weights.files import SLOW_SAVE
from heddle.weights.run import read_config

WORD = "resume"
SLOW = 0.2  # seconds that every save takes, so that a kill can hit it
STEPS = 12  # of the copy that is killed; it saves four times and is scored twice
WEIGHTS, METRICS, DATA = "model.safetensors", "metrics.jsonl", "data"
MISSES = 3  # runs for each kill that end before it
PAUSE = 0.005  # seconds between two looks at a process
OWN = "from heddle.prove.kills import main; main()"
# A process with threads cannot be copied safely: with these set to 1, torch starts none before it is asked to.
SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Tell = Callable[[str], None]


def fork(work: Callable[[], None], log: Path) -> int:
    """Start a copy of this process that does some work with slow saves and ends; what it prints goes to a file. Returns its number.

    This process must have started no threads: see `SINGLE`.
    """
    if child := os.fork():
        return child
    code = 1
    try:
        os.environ[SLOW_SAVE] = str(SLOW)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
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
    """Whether a process that was started here still runs.

    Raises:
        HeddleError: it failed.
    """
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        check(status)
    return not done


def check(status: int) -> None:
    """Refuse the status of a process that failed.

    Raises:
        HeddleError: it failed.
    """
    if code := os.waitstatus_to_exitcode(status):
        raise HeddleError(f"a run ended with code {code}")


def wait(child: int) -> float:
    """Wait for the end of a process; returns the seconds that it took."""
    began = time.monotonic()
    while alive(child):
        time.sleep(PAUSE)
    return time.monotonic() - began


def unfinished(folder: Path) -> list[Path]:
    """What is being written there, or was when its writer died."""
    return [path for path in folder.glob(".*") if path.suffix in (".partial", ".previous")]


def doing(run: Path) -> str:
    """What a stopped process was doing to a run."""
    for place, what in ((run.parent, "preparation"), (run / CHECKPOINTS, "save"), (run, "publication")):
        if unfinished(place):
            return what
    if not run.exists():
        return "start"
    if (run / WEIGHTS).exists():
        return "end"
    return "training" if (run / METRICS).exists() else "start of training"


def kill(child: int, run: Path, in_save: bool) -> str | None:
    """Kill a process and return what it was doing; None if it had already ended.

    With `in_save`, one that is not inside a save any more continues, and is killed inside the next one.
    """
    while True:
        os.kill(child, signal.SIGSTOP)
        done, status = os.waitpid(child, os.WUNTRACED)
        if done and not os.WIFSTOPPED(status):
            check(status)
            return None
        during = doing(run)
        if in_save and during != "save":
            os.kill(child, signal.SIGCONT)
            time.sleep(2 * PAUSE)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return during


def until(child: int, ready: Callable[[], bool]) -> bool:
    """Wait until something is so; False if the process ended before."""
    while not ready():
        if not alive(child):
            return False
        time.sleep(PAUSE)
    return True


def inside_save(child: int, run: Path, draw: random.Random) -> bool:
    """Wait for the next save, and for a random moment of it; False if the process ended before."""
    found = until(child, lambda: bool(unfinished(run / CHECKPOINTS)))
    time.sleep(draw.uniform(0, SLOW * 0.8) if found else 0)
    return found


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since this was called."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def after_step(run: Path, step: int) -> Callable[[], bool]:
    """Whether a process that starts after this was called has done a step."""
    metrics = run / METRICS
    before = metrics.stat().st_ino if metrics.exists() else None

    def done() -> bool:
        # A trainer begins with another file, which has no lines of steps that are to be done again.
        if not metrics.exists() or metrics.stat().st_ino == before:
            return False
        return any(line["step"] >= step for line in read_lines(metrics))

    return done


def saved(run: Path) -> int:
    """The step of the newest checkpoint."""
    steps = [int(path.name.removeprefix("step-")) for path in run.glob(f"{CHECKPOINTS}/step-*")]
    return max(steps, default=0)


def differences(run: Path, expected: Path) -> list[str]:
    """The files of a killed run that differ from those of an undisturbed one, and those that were left unfinished."""
    last = f"{CHECKPOINTS}/step-{saved(expected)}"
    compared = (WEIGHTS, ADAPTER, METRICS, *(f"{last}/{name}" for name in (WEIGHTS, ADAPTER, OPTIMIZER)))
    wrong = [name for name in compared if _content(run / name) != _content(expected / name)]
    return wrong + [path.name for path in run.rglob(".*") if path.suffix in (".partial", ".previous")]


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def save_every(steps: int) -> int:
    """Steps between two checkpoints of a copy."""
    return max(1, steps // 4)


def short_copy(run: Path, place: Path) -> Path:
    """A copy of a run before its first step, with its text, seed, model and schedule, but few steps.

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
    (place / CONFIG).write_text(config.model_copy(update={"chosen": copied}).to_json(), encoding="utf-8")
    return place


class Quiet(Trainer):
    """A trainer that does not generate text and scores as little at the end as in between: neither is compared."""

    def samples(self, seeds: Sequence[int], tokens: int = 60) -> list[str]:
        """Nothing."""
        return []


def train(run: Path) -> None:
    """Train a run to its end, from its newest checkpoint: what the processes do that are killed."""
    trainer = Quiet(run)
    trainer.ending = trainer.probe
    trainer.run()


def resumed(run: Path, kills: int, seed: int = 0, tell: Tell = lambda line: None) -> Verdict:
    """Train short copies of a run, kill them, resume them, and compare them with one that was left alone.

    All of that happens in a process of its own, which starts no threads, so that it can be copied instead of starting Python anew
    for every kill.

    Args:
        run: a run that was trained here, with its `data/`; it stays as it is.
        kills: how many.
        seed: of the moments.
        tell: called with one line before each copy starts.
    """
    if not kills:
        return Verdict(WORD, "NOT CHECKED", detail="--kills 3 trains copies of the run, kills them and resumes them")
    if not hasattr(os, "fork"):
        return Verdict(WORD, "NOT CHECKED", detail="this system cannot copy a process")
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **dict.fromkeys(SINGLE, "1")}
    call = [sys.executable, "-c", OWN, str(run), str(kills), str(seed)]
    found = Verdict(WORD, "DIFFERENT", inf, detail="the process that kills others ended before it had a result")
    with subprocess.Popen(call, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if isinstance(said, str):
                tell(said)
            else:
                found = Verdict(**said)
    return found


def main() -> None:
    """Kill and resume in this process: its arguments are those of `resumed`; lines and the verdict are printed as JSON."""
    importlib.import_module("torch._dynamo")  # optimizers import it, and every copy would take seconds for it
    run, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        try:
            verdict = _resumed(run, Path(folder), kills, random.Random(seed), say)
        except HeddleError as error:
            said = log.read_text().strip().splitlines()[-1:] if log.exists() else []
            verdict = Verdict(WORD, "DIFFERENT", inf, detail=": ".join([str(error), *said]))
    say(asdict(verdict))


def _resumed(run: Path, place: Path, kills: int, draw: random.Random, tell: Tell) -> Verdict:
    done, number = Counter[str](), 0

    def begin(copy: Path) -> int:
        return fork(partial(train, copy), place / "log.txt")

    tell(f"{WORD}: a copy that is left alone")
    expected = short_copy(run, place / "expected" / "run")
    lasted = wait(begin(expected))
    steps = saved(expected)
    current = short_copy(run, place / "0" / "run")
    while (killed := sum(done.values())) < kills:
        tell(f"{WORD}: kill {killed + 1} of {kills}")
        in_save, anywhere = killed % 3 == 0, killed % 3 == 2
        # Once there is something to lose: after the first checkpoint.
        step = draw.randint(min(max(saved(current), save_every(steps) + 1), steps), steps)
        ready = after(draw.uniform(0, lasted)) if anywhere else after_step(current, step)
        child = begin(current)
        hit = until(child, ready) and (not in_save or inside_save(child, current, draw))
        during = kill(child, current, in_save) if hit else None
        if during is not None:
            done[during] += 1
        elif wrong := differences(current, expected):
            return _different(wrong, done)
        elif number == MISSES * kills:
            return Verdict(WORD, "NOT CHECKED", detail="its steps are so short that no kill came before the end")
        else:
            number += 1
            current = short_copy(run, place / str(number) / "run")
    tell(f"{WORD}: to its end")
    wait(begin(current))
    if wrong := differences(current, expected):
        return _different(wrong, done)
    copies = "a copy" if number == 0 else f"{number + 1} copies"
    same = f"beside one of {steps} steps left alone: weights, optimizer and metrics are equal byte for byte"
    return Verdict(WORD, "EXACT", detail=f"{_told(done)} of {copies} on the CPU, {same}")


def _told(done: Counter[str]) -> str:
    during = ", ".join(f"{count} in {what}" for what, count in done.items())
    return f"{pluralize(sum(done.values()), 'kill')} ({during})"


def _different(wrong: Sequence[str], done: Counter[str]) -> Verdict:
    return Verdict(WORD, "DIFFERENT", inf, detail=f"{', '.join(wrong)} differ after {_told(done)}")
