"""Kill a training run with SIGKILL repeatedly, and check that it ends like an undisturbed run.

    python benchmarks/kills.py [--kills 20] [--inside 5] [--commands 3] [--seed 0] [--settings ema=0.9 patience=1] [--json]

Each kill comes from another process, at a random moment between the start of a process and the end of its work: while the
run is prepared, in a step, in an evaluation, in a save. `--inside` of them wait for a save to start. After every kill the
run is continued as by a user: `heddle train --resume` if its directory exists, else from the beginning. A finished run
is compared with the reference: the weights, the optimizer's state and the metrics must be equal byte for byte, and no
unfinished file may be left. Runs follow each other until all kills are done.

Saves are slowed down, so that a kill can hit them. Most processes are forked from one that has already imported torch,
to save time; `--commands` of the killed ones are started from the command line, like a user's.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before torch is imported: a process with threads cannot be forked safely

ROOT = Path(__file__).parents[1]
SLOW = 0.2  # seconds that every save takes
MODEL = ["tokenizer=bytes", "dim=16", "depth=1", "heads=2", "context=16", "dropout=0.1"]
TRAIN = ["batch=4", "steps=30", "evaluate_every=15", "save_every=5", "precision=fp32", "compile=off", "threads=1"]
COMPARED = ("model.safetensors", "metrics.jsonl", "checkpoints/step-30/optimizer.safetensors")


@dataclass
class Kill:
    """One kill: who was killed, after how many seconds, doing what, and with how many steps saved."""

    run: str
    started: str  # fork or command
    seconds: float
    during: str
    saved: int


class Server:
    """Starts processes that run `heddle`; it has imported only what they need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sys.path.insert(0, str(ROOT))
        import torch._dynamo  # noqa: F401 (it is what estimating the memory imports)

        from heddle.cli import main, training  # noqa: F401
        from heddle.train import next_token

        # Measuring the machine and generating samples take seconds in each process, and do not affect what is compared.
        plan: Any = sys.modules["heddle.train.plan"]
        plan.measure = lambda *args, **settings: 1e5
        plan.matmul_rate = lambda *args, **settings: 1e10
        next_token.generate_text = lambda *args, **settings: ""
        self.run = main.run

    def fork(self, words: Sequence[str]) -> int:
        child = os.fork()
        if child:
            return child
        os.chdir(self.folder)
        os.environ["HEDDLE_SLOW_SAVE"] = str(SLOW)
        log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            self.run(list(words))
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def command(self, words: Sequence[str]) -> int:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HEDDLE_SLOW_SAVE": str(SLOW)}
        with (self.folder / "log.txt").open("a") as log:
            call = [sys.executable, "-m", "heddle", *words]
            process = subprocess.Popen(call, cwd=self.folder, env=env, stdout=log, stderr=log)
        process.returncode = 0  # it is waited for by its id, like a forked one
        return process.pid


def alive(child: int) -> bool:
    """Whether a child still runs; one that failed is an error."""
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        check(status)
    return not done


def check(status: int) -> None:
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"a run ended with code {code}")


def unfinished(folder: Path) -> list[Path]:
    """What is being written there, or was when its writer died."""
    return [path for path in folder.glob(".*") if path.suffix in (".partial", ".previous")]


def doing(runs: Path, run: Path) -> str:
    """What a stopped process was doing."""
    for place, what in ((runs, "preparation"), (run / "checkpoints", "save"), (run, "publication")):
        if unfinished(place):
            return what
    if not run.exists():
        return "start"
    if (run / "model.safetensors").exists():
        return "end"
    return "training" if (run / "metrics.jsonl").exists() else "start of training"


def kill(child: int, runs: Path, run: Path, in_save: bool) -> str | None:
    """Kill a process and return what it was doing; None if it had already ended.

    With `in_save` one that is not inside a save any more goes on, and is killed inside the next one.
    """
    while True:
        os.kill(child, signal.SIGSTOP)
        done, status = os.waitpid(child, os.WUNTRACED)
        if done and not os.WIFSTOPPED(status):
            check(status)
            return None
        during = doing(runs, run)
        if in_save and during != "save":
            os.kill(child, signal.SIGCONT)
            time.sleep(0.01)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return during


def saved(run: Path) -> int:
    """The step of the newest checkpoint."""
    steps = [int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*")]
    return max(steps, default=0)


def words_for(run: Path, text: Path, settings: Sequence[str]) -> list[str]:
    """The command that a user would type now."""
    if run.exists():
        return ["train", "--resume", str(run)]
    return ["train", str(text), *MODEL, *TRAIN, *settings, "--name", str(run)]


def wait_for(child: int, seconds: float, in_save: bool, run: Path, draw: random.Random) -> bool:
    """Sleep until the moment of a kill, and then, on request, until the next save; False if the process ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(child):
            return False
        time.sleep(0.002)
    while in_save and not unfinished(run / "checkpoints"):
        if not alive(child):
            return False
        time.sleep(0.002)
    if in_save:
        time.sleep(draw.uniform(0, SLOW * 0.8))
    return True


def reference(server: Server, folder: Path, text: Path, settings: Sequence[str]) -> dict[str, float]:
    """Train without a kill, once from the command line and once forked; returns how long they took."""
    lasted = {}
    for how in ("command", "fork"):
        run = folder / "runs" / f"reference-{how}"
        began = time.monotonic()
        child = getattr(server, how)(words_for(run, text, settings))
        while alive(child):
            time.sleep(0.005)
        lasted[how] = time.monotonic() - began
    return lasted


def compare(folder: Path, run: Path) -> list[str]:
    """The differences of a killed run from the undisturbed one."""
    expected = folder / "runs" / "reference-command"
    wrong = [name for name in COMPARED if (run / name).read_bytes() != (expected / name).read_bytes()]
    return wrong + [str(path) for path in (folder / "runs").rglob(".*")]


def trial(
    folder: Path, kills: int, inside: int, commands: int, seed: int, settings: Sequence[str] = ()
) -> dict[str, Any]:
    draw = random.Random(seed)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(draw.choices("abcdefgh", k=12)) for _ in range(300)))
    server = Server(folder)
    runs, done = folder / "runs", list[Kill]()
    lasted = reference(server, folder, text, settings)
    inside_saves = [number < inside for number in range(kills)]
    hows = ["command" if number < commands else "fork" for number in range(kills)]
    draw.shuffle(inside_saves)
    draw.shuffle(hows)
    problems: dict[str, list[str]] = {}
    run, number = runs / "run-0", 0
    while len(done) < kills:
        how, in_save = hows[len(done)], inside_saves[len(done)]
        began = time.monotonic()
        child = getattr(server, how)(words_for(run, text, settings))
        hit = wait_for(child, draw.uniform(0, lasted[how]), in_save, run, draw)
        during = kill(child, runs, run, in_save) if hit else None
        if during is not None:
            done.append(Kill(run.name, how, round(time.monotonic() - began, 2), during, saved(run)))
        elif (run / "model.safetensors").exists():
            problems[run.name] = compare(folder, run)
            number += 1
            run = runs / f"run-{number}"
    child = server.fork(words_for(run, text, settings))
    while alive(child):
        time.sleep(0.005)
    problems[run.name] = compare(folder, run)
    return {
        "kills": [asdict(each) for each in done],
        "inside_saves": sum(each.during == "save" for each in done),
        "runs": len(problems),
        "lasted": lasted,
        "differences": {name: found for name, found in problems.items() if found},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--inside", type=int, default=5)
    parser.add_argument("--commands", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of the run")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        result = trial(folder, wanted.kills, wanted.inside, wanted.commands, wanted.seed, wanted.settings)
    except RuntimeError as error:
        sys.exit(f"{error}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if wanted.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{'run':8} {'started':8} {'seconds':>8}  {'killed during':18} saved")
        for each in result["kills"]:
            print(f"{each['run']:8} {each['started']:8} {each['seconds']:8.2f}  {each['during']:18} {each['saved']}")
        print(f"{len(result['kills'])} kills, {result['inside_saves']} inside saves, over {result['runs']} runs")
        print(
            "all equal to the run without kills" if not result["differences"] else f"DIFFERENT: {result['differences']}"
        )
    sys.exit(1 if result["differences"] else 0)


if __name__ == "__main__":
    main()
