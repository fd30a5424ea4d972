"""Kill a training run with SIGKILL repeatedly, and check that it ends like an undisturbed run.

    python benchmarks/kills.py [--task next_token|masked|translation|classification] [--kills 20] [--inside 5] [--commands 3]
                               [--seed 0] [--settings ema=0.9 patience=1] [--json]

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
sys.path.insert(0, str(ROOT))

from heddle.errors import HeddleError  # noqa: E402
from heddle.prove.kills import SAVE_SECONDS, after, differences, fork, inside_save, kill, saved, until, wait  # noqa: E402
from heddle.weights.files import SLOW_SAVE  # noqa: E402

TASKS = ("next_token", "masked", "translation", "classification")
MODEL = ["tokenizer=bytes", "dim=16", "depth=1", "heads=2", "context=16", "dropout=0.1"]
TRAIN = ["batch=4", "steps=30", "evaluate_every=15", "save_every=5", "precision=fp32", "compile=off", "threads=1"]


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
        import torch._dynamo  # noqa: F401 (it is what estimating the memory imports)

        from heddle.cli import main, training  # noqa: F401
        from heddle.tasks import next_token

        # Measuring the machine and generating samples take seconds in each process, and do not affect what is compared.
        plan: Any = sys.modules["heddle.runs.plan"]
        plan.measure = lambda *args, **settings: 1e5
        plan.peak_rate = lambda *args, **settings: 1e10
        task: Any = next_token.NextTokenTask
        task.samples = lambda self, model, tokenizer, seeds, tokens: [""] * len(seeds)
        self.run = main.run

    def fork(self, words: Sequence[str]) -> int:
        def work() -> None:
            os.chdir(self.folder)
            self.run(list(words))

        return fork(work, self.folder / "log.txt")

    def command(self, words: Sequence[str]) -> int:
        env = {**os.environ, "PYTHONPATH": str(ROOT), SLOW_SAVE: str(SAVE_SECONDS)}
        with (self.folder / "log.txt").open("a") as log:
            call = [sys.executable, "-m", "heddle", *words]
            process = subprocess.Popen(call, cwd=self.folder, env=env, stdout=log, stderr=log)
        process.returncode = 0  # it is waited for by its id, like a forked one
        return process.pid


def write_data(task: str, folder: Path, draw: random.Random) -> list[str]:
    """Write a small text or table for a task; returns its file and the task, as a user would type them."""
    lines = [" ".join(draw.choices("abcdefgh", k=12)) for _ in range(300)]
    if task in ("next_token", "masked"):
        file, rows = folder / "text.txt", lines
    else:
        file = folder / "table.csv"
        pairs = [(line[:11], line[:9].upper() if task == "translation" else line[0]) for line in lines]
        rows = ["source,target" if task == "translation" else "text,label", *(",".join(pair) for pair in pairs)]
    file.write_text("\n".join(rows) + "\n")
    return [str(file), f"task={task}"]


def words_for(run: Path, new: Sequence[str]) -> list[str]:
    """The command that a user would type now."""
    if run.exists():
        return ["train", "--resume", str(run)]
    return ["train", *new, *MODEL, *TRAIN, "--name", str(run)]


def reference(server: Server, folder: Path, new: Sequence[str], hows: Sequence[str]) -> dict[str, float]:
    """Train without a kill, once in each way that is needed, the command line first; returns how long they took."""
    lasted = {}
    for how in dict.fromkeys(("command", *hows)):
        run = folder / "runs" / f"reference-{how}"
        lasted[how] = wait(getattr(server, how)(words_for(run, new)))
    return lasted


def compare(folder: Path, run: Path) -> list[str]:
    """The differences of a killed run from the undisturbed one."""
    expected = folder / "runs" / "reference-command"
    return differences(run, expected) + [str(path) for path in (folder / "runs").rglob(".*")]


def trial(
    folder: Path,
    kills: int,
    inside: int,
    commands: int,
    seed: int,
    settings: Sequence[str] = (),
    task: str = "next_token",
) -> dict[str, Any]:
    draw = random.Random(seed)
    new = [*write_data(task, folder, draw), *settings]
    server = Server(folder)
    runs, done = folder / "runs", list[Kill]()
    inside_saves = [number < inside for number in range(kills)]
    hows = ["command" if number < commands else "fork" for number in range(kills)]
    draw.shuffle(inside_saves)
    draw.shuffle(hows)
    lasted = reference(server, folder, new, hows)
    problems: dict[str, list[str]] = {}
    run, number = runs / "run-0", 0
    while len(done) < kills:
        how, in_save = hows[len(done)], inside_saves[len(done)]
        began = time.monotonic()
        child = getattr(server, how)(words_for(run, new))
        ready = after(draw.uniform(0, lasted[how]))
        hit = until(child, ready) and (not in_save or inside_save(child, run, draw))
        during = kill(child, run, in_save) if hit else None
        if during is not None:
            done.append(Kill(run.name, how, round(time.monotonic() - began, 2), during, saved(run)))
        elif (run / "model.safetensors").exists():
            problems[run.name] = compare(folder, run)
            number += 1
            run = runs / f"run-{number}"
    wait(server.fork(words_for(run, new)))
    problems[run.name] = compare(folder, run)
    return {
        "kills": [asdict(each) for each in done],
        "inside_saves": sum(each.during == "save" for each in done),
        "runs": len(problems),
        "lasted": lasted,
        "differences": {name: problem for name, problem in problems.items() if problem},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default=TASKS[0], choices=TASKS)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--inside", type=int, default=5)
    parser.add_argument("--commands", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of the run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        how = options.kills, options.inside, options.commands, options.seed
        result = trial(folder, *how, options.settings, options.task)
    except HeddleError as error:
        sys.exit(f"{error}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
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
