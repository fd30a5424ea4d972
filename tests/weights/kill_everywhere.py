"""Kill a writer before each of its steps on the disk, one after another, and look at what each kill leaves.

Run as `python kill_everywhere.py FOLDER {publish|checkpoint}...`. A step is whatever Python reports to audit hooks: every
opening, renaming, linking, making and removing of a file or directory.
"""

import os
import shutil
import sys
from pathlib import Path

import torch

from heddle.config import SavedConfig, sized
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights.checkpoints import MODEL, OPTIMIZER, STATE, check, checkpoints, newest_valid, save_checkpoint
from heddle.weights.run import load, publish, write_model

CONFIG = sized(1, vocab_size=257, context=8, dim=16)
STEPS = {"open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
OLD, NEW = (build(CONFIG, seed=seed).state_dict() for seed in (1, 2))
OPTIMIZER_STATE = {"moment": torch.ones(3)}


def killed_before(step: int, run: Path, write: str) -> bool:
    """Write in a child process that dies before its `step`-th step; False when it came to its end instead."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in STEPS and str(run) in str(arguments[0]):
                left -= 1
                if left == 0:
                    os._exit(137)

        sys.addaudithook(count)
        write_new(run, write)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137


def write_new(run: Path, write: str) -> None:
    if write == "publish":
        publish(run, NEW, step=20)
    else:
        save_checkpoint(run, 20, NEW, OPTIMIZER_STATE, {"step": 20}, keep=1)


def look(run: Path, write: str) -> str:
    """Which weights the run has, old or new; anything else is an error."""
    if write == "checkpoint":
        newest, notes = newest_valid(run)
        assert newest is not None
        assert not notes, notes
        assert all(not check(path, (MODEL, OPTIMIZER, STATE)) for _, path in checkpoints(run))
    state = load(run, "cpu").model.state_dict()
    for name, weights in (("old", OLD), ("new", NEW)):
        if all(torch.equal(state[key], weights[key]) for key in weights):
            return name
    raise AssertionError("a mixture of old and new weights")


def main(write: str, folder: Path) -> None:
    sound = folder / "sound"
    sound.mkdir(parents=True)
    write_model(sound, OLD, SavedConfig(model=CONFIG), train_tokenizer("bytes", []), step=10)
    save_checkpoint(sound, 10, OLD, OPTIMIZER_STATE, {"step": 10}, keep=1)
    if write == "checkpoint":
        (sound / "manifest.json").unlink()
        (sound / "model.safetensors").unlink()
    seen = []
    while True:
        run = folder / f"run-{len(seen)}"
        shutil.copytree(sound, run)
        died = killed_before(len(seen) + 1, run, write)
        seen.append(look(run, write))
        # Whoever comes next finishes or clears what was left, and succeeds.
        write_new(run, write)
        assert look(run, write) == "new"
        assert not list(run.rglob(".*")), list(run.rglob(".*"))
        if not died:
            break
        shutil.rmtree(run)
    assert seen == sorted(seen, reverse=True), seen  # old, ..., old, new, ..., new: once new, always new
    print(len(seen), seen.count("old"), seen.count("new"))


torch.set_num_threads(1)
os.fsync = lambda fd: None  # the process dies here, not the machine
for each in sys.argv[2:]:
    main(each, Path(sys.argv[1]) / each)
