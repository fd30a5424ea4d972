"""Devices and weights that cannot work, in every command that takes them: one line, exit code 2, nothing written."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import heddle as package
from heddle.cli.main import COMMANDS, GROUPS, _options, make_app
from heddle.config import sized
from heddle.errors import HeddleError
from heddle.text import train_tokenizer
from heddle.weights import load, save
from heddle.weights.files import relist

from .conftest import TINY, Heddle, tree

# Commands that compute on a device, with what else they need, and a file that they would write.
COMPUTING: dict[str, str] = {
    "train": "corpus.txt --name b",
    "generate": "a --prompt the",
    "classify": "a the --out new.csv",
    "fill": "a the --out new.csv",
    "embed": "a the --out new.npy",
    "translate": "a corpus.txt",
    "chat": "a",
    "serve": "a --port 0",
    "look": "a --prompt the --html new.html",
    "eval": "a --beams 2 --output new.txt",
    "bench": "--quick --json new.json",
}
ABSENT = "mps" if torch.cuda.is_available() else "cuda"
NAMES = [ABSENT, *(["cuda:7", "cuda:63"] if ABSENT == "cuda" else [])]


def commands_with(option: str) -> set[str]:
    """The commands that have this option."""
    calls = [[name] for name, *_ in COMMANDS]
    calls += [[group, name] for (group, _), commands in GROUPS.items() for name, *_ in commands]
    return {" ".join(words) for words in calls if option in _options(make_app(), words)}


def line_of(heddle: Heddle, *words: str) -> str:
    """What a command prints that is refused: one line on stderr, and nothing is written."""
    before = tree(Path())
    result = heddle(*words)
    assert (result.code, result.out) == (2, ""), result
    assert result.err.startswith("heddle: ")
    assert result.err.count("\n") == 1, result.err
    assert tree(Path()) == before
    return result.err.removeprefix("heddle: ").rstrip("\n")


def test_every_command_that_has_a_device_is_tested() -> None:
    assert commands_with("--device") - {"plan"} == set(COMPUTING), "the device of a plan is a row of a table"
    for option in ("--weights", "--precision"):
        assert commands_with(option) < set(COMPUTING)


@pytest.mark.parametrize("command", COMPUTING)
def test_a_device_that_is_not_here(heddle: Heddle, run_a: Path, corpus: str, command: str) -> None:
    words = [command, *COMPUTING[command].split(), *(TINY[:-1] if command == "train" else [])]
    for name in NAMES:
        line = f"device = {name!r}: torch {torch.__version__} does not find this device here; use "
        assert line_of(heddle, *words, "--device", name).startswith(line)
    for name in ("", "meta", "cuda:", "cuda:-1", "gpu", "xpu"):
        line = line_of(heddle, *words, "--device", name)
        assert f"device = {name!r}" in line
        assert "auto, cpu, cuda, cuda:N" in line


@pytest.mark.parametrize("name", NAMES)
def test_a_device_in_settings_that_is_not_here(heddle: Heddle, run_a: Path, corpus: str, name: str) -> None:
    line = f"device = {name!r}: torch {torch.__version__} does not find this device here; use "
    Path("run.toml").write_text(f'[data]\nsources = ["corpus.txt"]\n[train]\ndevice = "{name}"\n')
    for words in (["run.toml"], ["corpus.txt", f"device={name}"], ["corpus.txt", f"train.device={name}"]):
        assert line_of(heddle, "train", *words, "--name", "b").startswith(line)
        assert line_of(heddle, "train", *words, "--dry-run").startswith(line)
    assert line_of(heddle, "train", "--resume", "a", "steps=8", "--device", name).startswith(line)


@pytest.mark.parametrize("name", NAMES)
def test_a_device_in_python_that_is_not_here(run_a: Path, name: str) -> None:
    line = rf"^device = '{name}': torch \S+ does not find this device here; use "
    model, tokenizer = package.build(sized(1, vocab_size=16, dim=16), seed=1), train_tokenizer("characters", ["abc"])
    calls: list[Callable[[], object]] = [
        lambda: package.build(model.config, device=name),
        lambda: load(run_a, name),
        lambda: package.fit(model, tokenizer, ["abc" * 99], steps=1, device=name),
        lambda: package.bench.bench(name),
        lambda: package.account.machine.matmul_rate(device=name),
    ]
    for call in calls:
        with pytest.raises(HeddleError, match=line):
            call()


def test_a_run_of_another_machine_predicts_here(heddle: Heddle, run_a: Path) -> None:
    """It was trained on a device that is not here; only to go on training needs it."""
    for file in (run_a / "config.json", *run_a.glob("checkpoints/*/config.json")):
        chosen = f'"device": "{ABSENT}",\n    "precision"'
        file.write_text(file.read_text().replace('"device": "cpu",\n    "precision"', chosen))
        relist(file.parent, file.name)
    for words in ("generate a", "eval a", "look a --names", "count a", "runs", "export a out", "data show a"):
        assert heddle(*words.split()).code == 0, words
    assert "does not find this device here" in line_of(heddle, "train", "--resume", "a", "steps=8")


@pytest.mark.parametrize("command", sorted(commands_with("--weights")))
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_of_a_model_without_such_layers(heddle: Heddle, corpus: str, command: str, weights: str) -> None:
    tokenizer = train_tokenizer("bytes", [])
    save(package.build(sized(1, vocab_size=tokenizer.vocab_size, dim=8), seed=1), Path("runs/a"), tokenizer)
    line = line_of(heddle, command, *COMPUTING[command].split(), "--weights", weights)
    assert line == f"weights = {weights!r}: this model has no linear layers to quantize"
