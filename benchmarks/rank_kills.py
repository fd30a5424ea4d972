"""Kill one of several processes that train together with SIGKILL, again and again, and check what torchrun makes of it.

    python benchmarks/rank_kills.py [--count 20] [--each 4] [--ranks 2] [--seed 0] [--json]

torchrun starts a training with `--max-restarts`, by its static and its dynamic rendezvous in turn. A random rank is killed at a
random moment: anywhere from the start of its process on, after one of the next 15 steps, or inside a save. torchrun ends the others
and starts all of them again, and they continue the run. After `--each` kills, the run goes on to its end, and the next one begins.
Every run must end like one that nobody disturbed: weights, metrics with the loss of every step, and the last checkpoint's shards of
weights and optimizer state, byte for byte.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from heddle.prove.kills import SAVE_SECONDS, after_step, differences, doing, saved, unfinished  # noqa: E402
from heddle.weights.checkpoints import CHECKPOINTS  # noqa: E402
from heddle.weights.files import SLOW_SAVE  # noqa: E402

MODEL = ["tokenizer=bytes", "dim=16", "depth=1", "heads=2", "context=16", "dropout=0.1"]
STEPS, FURTHER = 60, 15  # of a run, and at most from its newest checkpoint to a kill
TRAIN = ["batch=4", f"steps={STEPS}", "evaluate_every=20", "save_every=5", "precision=fp32", "compile=off", "threads=1"]
POLL = 0.005  # seconds
PATIENCE = 300.0  # seconds for a run to end


@dataclass
class Kill:
    """One kill: of which rank, after how many seconds of its life, doing what, and with how many steps saved."""

    run: str
    rank: int
    seconds: float
    during: str
    saved: int


def launch(folder: Path, run: Path, ranks: int, restarts: int, static: bool = False) -> subprocess.Popen[bytes]:
    """torchrun with a training, by its static or its dynamic rendezvous."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = ["--master-port", str(free.getsockname()[1])] if static else ["--standalone"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(ranks)]
    words = [*torchrun, "--max-restarts", str(restarts), "-m", "heddle", "train", str(folder / "text.txt")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", SLOW_SAVE: str(SAVE_SECONDS)}
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(
            [*words, *MODEL, *TRAIN, "--name", str(run)], cwd=folder, env=environment, stdout=log, stderr=log
        )


def processes(launcher: int) -> dict[int, int]:
    """The process of each rank that torchrun has started and that still runs."""
    running = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == launcher and state != "Z":
                words = dict(
                    word.split(b"=", 1) for word in (place / "environ").read_bytes().split(b"\0") if b"=" in word
                )
                running[int(words[b"RANK"])] = int(place.name)
        except (OSError, KeyError, ValueError):  # it has just ended, or it is another program
            continue
    return running


def until(process: subprocess.Popen[bytes], condition: Any) -> bool:
    """Wait for a condition; whether it came true before the process ended."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None:
        if condition():
            return True
        if time.monotonic() > end:
            raise TimeoutError("a run does not go on")
        time.sleep(POLL)
    return False


def disturb(
    process: subprocess.Popen[bytes], run: Path, ranks: int, before: set[int], life: float, draw: random.Random
) -> tuple[Kill, set[int]] | None:
    """Kill a rank of the next generation; None if the run ends before."""
    if not until(process, lambda: len(now := processes(process.pid)) == ranks and not before & set(now.values())):
        return None
    began, moment = time.monotonic(), draw.choice(("anywhere", "step", "save"))
    wait = draw.uniform(0, life)
    stepped = after_step(run, min(saved(run) + draw.randint(1, FURTHER), STEPS - 1))
    conditions = {
        "anywhere": lambda: time.monotonic() - began > wait,
        "step": stepped,
        "save": lambda: stepped() and bool(unfinished(run / CHECKPOINTS)),
    }
    if not until(process, conditions[moment]):
        return None
    now, rank = processes(process.pid), draw.randrange(ranks)
    if rank not in now:
        return None
    activity = doing(run)
    os.kill(now[rank], signal.SIGKILL)
    return Kill(run.name, rank, round(time.monotonic() - began, 2), activity, saved(run)), set(now.values())


def trial(folder: Path, count: int, each: int, ranks: int, seed: int) -> dict[str, Any]:
    """All kills, and what is not as in the undisturbed run."""
    draw = random.Random(seed)
    (folder / "text.txt").write_text("\n".join(" ".join(draw.choices("abcdefgh", k=12)) for _ in range(300)))
    expected, began = folder / "undisturbed", time.monotonic()
    if launch(folder, expected, ranks, 0).wait(PATIENCE):
        raise SystemExit(f"the undisturbed run failed:\n{(folder / 'log.txt').read_text()[-3000:]}")
    life, kills, problems, number = time.monotonic() - began, list[Kill](), dict[str, list[str]](), 0
    while len(kills) < count:
        run, number = folder / f"run-{number}", number + 1
        most = min(each, count - len(kills))
        process, before = launch(folder, run, ranks, most, static=number % 2 == 0), set[int]()
        for _ in range(most):
            if (done := disturb(process, run, ranks, before, 0.8 * life, draw)) is None:
                break
            kills.append(done[0])
            before |= done[1]
        code = process.wait(PATIENCE)
        problem = [f"exit code {code}"] * bool(code) + differences(run, expected)
        problems |= {run.name: problem} if problem else {}
    return {"kills": [asdict(kill) for kill in kills], "runs": number, "different": problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 20), ("each", 4), ("ranks", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    result = trial(folder, options.count, options.each, options.ranks, options.seed)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for kill in result["kills"]:
            print("{run:8} rank {rank} after {seconds:6.2f} s, during {during}, {saved} steps saved".format(**kill))
        during = Counter(kill["during"] for kill in result["kills"])
        print(
            f"{len(result['kills'])} kills ({', '.join(f'{n} in {what}' for what, n in during.items())}), {result['runs']} runs"
        )
        print(
            f"DIFFERENT: {result['different']}, see {folder}"
            if result["different"]
            else "all equal to the undisturbed run"
        )
    if not result["different"]:
        shutil.rmtree(folder)
    sys.exit(1 if result["different"] else 0)


if __name__ == "__main__":
    main()
