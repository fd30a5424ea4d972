"""A program: ranks that train together, and what happens to them, `scenes.py SCENE FOLDER`. It prints what came of it as JSON.

Ranks are forks of this process, which has imported what they need. Their standard output and error are files of the folder. Since
ranks mostly wait, `several` plays more than one scene at once.
"""

import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import heddle
from heddle.cli import main as cli
from heddle.cli import training as cli_training
from heddle.parallel.saving import ShardWriter
from heddle.runs import session as run_session
from heddle.runs import trainer as runs_trainer
from heddle.runs.trainer import Trainer
from heddle.text import train_tokenizer
from heddle.train import training as train_training
from heddle.weights.files import WriteError

SETTINGS = {
    **{"tokenizer": "bytes", "dim": 16, "depth": 1, "heads": 2, "context": 16, "batch": 4, "precision": "fp32"},
    **{
        "products": "torch",
        "compile": "off",
        "threads": 1,
        "evaluate_every": 100,
        "save_every": 100,
        "step_timeout": 20,
        "start_timeout": 60,
    },
}
Change = Callable[[], None]


def text(folder: Path) -> Path:
    """A text of a few words."""
    draw, file = random.Random(0), folder / "text.txt"
    file.write_text("\n".join(" ".join(draw.choices(["warp", "weft", "reed", "heald"], k=9)) for _ in range(100)))
    return file


def words(folder: Path, *settings: str) -> list[str]:
    """The command of a user."""
    chosen = SETTINGS | dict(setting.split("=") for setting in settings)
    pairs = [f"{name}={value}" for name, value in chosen.items()]
    return ["train", str(folder / "text.txt"), *pairs, "--name", str(folder / "run")]


class Ranks:
    """Processes with the environment that a launcher gives them: srun or, with an agent that has the store, torchrun."""

    def __init__(self, folder: Path, count: int = 2, has_agent: bool = False) -> None:
        self.folder, self.count, self.pids = folder, count, dict[int, int]()
        if has_agent:
            torch_distributed: Any = torch.distributed
            self.store = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self.port = self.store.port
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, rank: int, command: list[str], change: Change = lambda: None) -> None:
        """One rank, with a change of its own."""
        if pid := os.fork():
            self.pids[rank] = pid
            return
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "WORLD_SIZE": str(self.count)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.count)}
        act(self.folder, f"{rank}", command, change)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def wait(self, rank: int, seconds: float = 60.0) -> int | None:
        """Its exit code; None if it does not end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(self.pids[rank], os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self.signal(rank, signal.SIGKILL)
        os.waitpid(self.pids[rank], 0)
        return None


def act(folder: Path, name: str, command: list[str], change: Change = lambda: None) -> None:
    """This process runs a command from now on, and ends with it; what it prints are files."""

    def run() -> None:
        write(folder, name)
        change()
        cli.run(command)

    ended_with(run)


def ended_with(call: Change) -> None:
    """This process makes the call, and ends with it."""
    code: Any = 1
    try:
        call()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def write(folder: Path, name: str) -> None:
    """What this process prints goes to files from now on."""
    torch.set_num_threads(1)
    for number, file in ((1, f"out-{name}.txt"), (2, f"err-{name}.txt")):
        os.dup2(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def after_steps(folder: Path, steps: int = 3) -> None:
    """Wait until the run has done so many steps."""
    metrics, end = folder / "run" / "metrics.jsonl", time.monotonic() + 60
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
        if time.monotonic() > end:
            raise TimeoutError("no step was done")
        time.sleep(0.02)


def outcome(folder: Path, **more: Any) -> None:
    """Print what the terminal, the logs and the run have."""
    run = folder / "run"
    logs = {file.name: file.read_text() for file in run.glob("logs/*") if file.is_file()}
    errors = {file.stem: file.read_text() for file in folder.glob("err-*.txt")}
    steps = sorted(int(path.name.partition("-")[2]) for path in run.glob("checkpoints/step-*"))
    output = "".join(file.read_text() for file in sorted(folder.glob("out-*.txt")))
    print(json.dumps({"logs": logs, "errors": errors, "output": output, "steps": steps, **more}))


def both(
    folder: Path,
    *settings: str,
    change: Change = lambda: None,
    other: tuple[str, ...] = (),
    command: list[str] | None = None,
) -> Ranks:
    """Two ranks that train, or have another command; rank 1 has a change, and perhaps other settings."""
    ranks = Ranks(folder)
    ranks.start(0, command or words(folder, *settings))
    ranks.start(1, command or words(folder, *(other or settings)), change)
    return ranks


def gone(folder: Path, victim: str, how: str) -> None:
    """One rank is stopped or killed after three steps; in that case the other gets the signal that torchrun sends."""
    ranks, rank = both(folder, "steps=1000000", "step_timeout=1.5"), int(victim)
    after_steps(folder)
    ranks.signal(rank, getattr(signal, how))
    began = time.monotonic()
    if how == "SIGKILL":
        time.sleep(0.5)
        ranks.signal(1 - rank, signal.SIGTERM)
    code = ranks.wait(1 - rank)
    seconds = time.monotonic() - began
    if how == "SIGSTOP":
        ranks.signal(rank, signal.SIGKILL)
    ranks.wait(rank)
    outcome(folder, code=code, seconds=seconds)


def evaluates(folder: Path) -> None:
    """Rank 0 is stopped while it evaluates, for which the others would wait for an hour."""

    def slow() -> None:
        Trainer._score = lambda self: time.sleep(3600)  # type: ignore[method-assign, assignment, return-value]

    ranks = Ranks(folder, has_agent=True)
    command = words(folder, "steps=1000000", "evaluate_every=4", "step_timeout=1.5")
    ranks.start(0, command, slow)
    ranks.start(1, command)
    after_steps(folder, 4)
    ranks.signal(0, signal.SIGSTOP)
    began = time.monotonic()
    code = ranks.wait(1)
    seconds = time.monotonic() - began
    ranks.signal(0, signal.SIGKILL)
    ranks.wait(0)
    outcome(folder, code=code, seconds=seconds)


def saves(folder: Path, victim: str) -> None:
    """One rank is stopped while it writes its shards of the second checkpoint."""

    def stops() -> None:
        once, calls = ShardWriter.write_data, count(1)

        def write(self: ShardWriter, *arguments: Any) -> Any:
            if next(calls) == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            return once(self, *arguments)

        ShardWriter.write_data = write  # type: ignore[assignment, method-assign]

    ranks, rank = Ranks(folder, has_agent=True), int(victim)
    for each in range(2):
        command = words(folder, "steps=1000000", "save_every=4", "step_timeout=1.5")
        ranks.start(each, command, stops if each == rank else lambda: None)
    after_steps(folder, 8)
    began = time.monotonic()
    code = ranks.wait(1 - rank)
    seconds = time.monotonic() - began
    ranks.signal(rank, signal.SIGKILL)
    ranks.wait(rank)
    outcome(folder, code=code, seconds=seconds)


def publishes(folder: Path) -> None:
    """Rank 0 takes long to publish, and then all of them generate samples."""

    def together() -> None:
        def samples(self: Trainer, seeds: Any, tokens: int = 60) -> list[str]:
            self.session.ranks.wait()
            return [""] * len(seeds)

        Trainer.samples = samples  # type: ignore[method-assign]

    def slow() -> None:
        together()
        training: Any = runs_trainer
        once = training.publish

        def publish(*arguments: Any) -> None:
            time.sleep(4)
            once(*arguments)

        training.publish = publish

    ranks, command = Ranks(folder, has_agent=True), words(folder, "steps=3", "step_timeout=1.5")
    ranks.start(0, command, slow)
    ranks.start(1, command, together)
    outcome(folder, codes=[ranks.wait(0), ranks.wait(1)])


def terminated(folder: Path) -> None:
    """One rank gets SIGTERM."""
    ranks = both(folder, "steps=1000000")
    after_steps(folder)
    ranks.signal(1, signal.SIGTERM)
    outcome(folder, codes=[ranks.wait(0), ranks.wait(1)])


def refused(folder: Path, what: str) -> None:
    """Rank 1 differs, or both ask for what cannot be."""

    def older() -> None:
        heddle.__version__ = "0.0.9"

    def copied() -> None:
        session: Any = run_session
        once = session.read_run

        def read(run: Path) -> Any:
            opened = once(run)
            return replace(opened, tokenizer=train_tokenizer("bytes", [], special=("[MASK]",)))

        session.read_run = read

    ranks = {
        "version": lambda: both(folder, "steps=5", change=older),
        "settings": lambda: both(folder, "steps=5", other=("steps=9",)),
        "text": lambda: both(folder, "steps=5", change=copied),
        "batch": lambda: both(folder, "steps=5", "batch=3"),
        "words": lambda: both(folder, "steps=x"),
        "words of rank 0": lambda: both(folder, "steps=x", other=("steps=5",)),
        "words of rank 1": lambda: both(folder, "steps=5", other=("steps=x",)),
        "cards": lambda: both(folder, "steps=5", "device=cuda:0"),
        "command": lambda: both(folder, command=["eval", "run"]),
        "heads": lambda: both(folder, "steps=5", "tensor=2", "heads=3", "dim=18"),
    }[what]()
    last = ranks.wait(1)
    with suppress(ProcessLookupError):
        ranks.signal(0, signal.SIGTERM)  # as torchrun does once a rank has ended
    codes = [ranks.wait(0), last]
    outcome(folder, codes=codes, left=sorted(path.name for path in folder.iterdir()))


def alone(folder: Path, rank: str) -> None:
    """Only one of two ranks starts."""
    ranks = Ranks(folder)
    ranks.start(int(rank), words(folder, "start_timeout=1"))
    code = ranks.wait(int(rank))
    outcome(folder, code=code, left=sorted(path.name for path in folder.iterdir()))


def fails(folder: Path, where: str) -> None:
    """An error of one rank: of rank 1 in a step, of a rank that runs out of memory, or of rank 0 while it saves on a full disk."""

    def step() -> None:
        once = Trainer._one_step

        def broken(self: Trainer) -> Any:
            if self.session.step == 4:
                raise ValueError("a broken loss")
            return once(self)

        Trainer._one_step = broken  # type: ignore[method-assign]

    def save() -> None:
        def full(*arguments: Any) -> None:
            raise WriteError("disk full while writing step-4: 0.0 MB free there; nothing was changed")

        session: Any = run_session
        session.fill_checkpoint = full

    def memory() -> None:
        training: Any = train_training
        once, calls = training.train_step, count(1)

        def full(*arguments: Any) -> Any:
            if next(calls) == 5:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return once(*arguments)

        training.train_step = full

    # Without an agent, rank 0 has the store.
    ranks, command = Ranks(folder, has_agent="memory" in where), words(folder, "steps=1000000", "save_every=4")
    ranks.start(0, command, {"save": save, "memory-0": memory}.get(where, lambda: None))
    ranks.start(1, command, {"step": step, "memory-1": memory}.get(where, lambda: None))
    outcome(folder, codes=[ranks.wait(0), ranks.wait(1)])


def logs(folder: Path) -> None:
    """A run in which rank 0 cannot write its log, and that of rank 1 lies on a full disk."""

    def prepare_both(run: Path) -> None:
        (run / "logs" / "rank-0.txt").mkdir(parents=True)
        (run / "logs" / "rank-1.txt").symlink_to("/dev/full")

    def first() -> None:
        training: Any = cli_training
        once = training._prepared

        def prepared(*arguments: Any) -> Path:
            run: Path = once(*arguments)
            prepare_both(run)
            return run

        training._prepared = prepared

    ranks, command = Ranks(folder), words(folder, "steps=3")
    ranks.start(0, command, first)
    ranks.start(1, command)
    outcome(folder, codes=[ranks.wait(0), ranks.wait(1)])


def restarted(folder: Path) -> None:
    """torchrun's agent starts two ranks again after each of two kills, and they continue; nobody disturbs another run."""
    settings = ("steps=12", "save_every=2", "evaluate_every=6", "dropout=0.1")
    for name, kills in (("alone", 0), ("killed", 2)):
        (folder / name).mkdir()
        text(folder / name)
        agent(folder / name, kills, words(folder / name, *settings))
    lines = {name: (folder / name / "run" / "metrics.jsonl").read_text() for name in ("alone", "killed")}
    logs = {file.name: file.read_text() for file in (folder / "killed" / "run" / "logs").iterdir()}
    output = (folder / "killed" / "out-0.txt").read_text()
    print(json.dumps({"alone": lines["alone"], "killed": lines["killed"], "logs": logs, "output": output}))


def several(folder: Path, scenes: str) -> None:
    """Scenes with their words, as JSON; each has a process and a folder of its own."""
    children = []
    for number, (name, *words) in enumerate(json.loads(scenes)):
        (place := folder / str(number)).mkdir()
        if not (child := os.fork()):
            os.dup2(os.open(folder / f"{number}.json", os.O_WRONLY | os.O_CREAT), 1)
            ended_with(partial(play, name, place, *words))
        children.append(child)
    if sum(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a scene broke off")
    print(json.dumps([json.loads((folder / f"{number}.json").read_text()) for number in range(len(children))]))


def play(scene: str, folder: Path, *words: str) -> None:
    """A scene in a folder, which has a text."""
    text(folder)
    globals()[scene](folder, *words)


def agent(folder: Path, kills: int, command: list[str]) -> None:
    """Two ranks started by torchrun's own agent; rank 1 kills itself and, once they run again, rank 0."""

    def rank() -> None:
        number, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        write(folder, os.environ["RANK"])
        if restarts == 1 - number < kills:
            once, step = Trainer._one_step, 3 if number == 1 else 7

            def broken(self: Trainer) -> Any:
                if self.session.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return once(self)

            Trainer._one_step = broken  # type: ignore[method-assign]
        cli.run(command)

    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="looms", max_restarts=kills,
                          monitor_interval=0.1, start_method="fork")  # fmt: skip
    elastic_launch(config, rank)()


if __name__ == "__main__":
    scene, place, *more = sys.argv[1:]
    play(scene, Path(place), *more)
