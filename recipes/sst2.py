"""SST-2 from scratch: accuracy on the development part, of encoders that start from nothing, masked words or vectors.

    python recipes/sst2.py [--data FOLDER --start nothing masked vectors --seeds 5 --runs DIR] [--json FILE]

FOLDER has train.txt and dev.txt, a label and a sentence per line. Accuracies are means over the seeds, with their standard
deviation; published with the same 6,920 sentences, on the test part: 81.8 by naive Bayes (Socher et al. 2013).
"""

from pathlib import Path

from common import DATA, HERE, absent, asked, heddle, minutes, parser, report, spread

STARTS = ("nothing", "masked", "vectors")


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


def main() -> None:
    more = parser(__doc__, seeds=5)
    more.add_argument("--data", type=Path, default=DATA / "sst2")
    more.add_argument("--start", nargs="+", choices=STARTS, default=list(STARTS))
    arguments = more.parse_args()
    if not (arguments.data / "train.txt").is_file():
        absent(f"{arguments.data} has no train.txt; name the folder: --data FOLDER")
    folder = arguments.runs / "sst2-texts"
    prepare(arguments.data, folder)
    settings = [folder / "train.tsv", f"validation_sources={folder / 'dev.tsv'}"]
    rows = []
    for start in arguments.start:
        accuracy, seconds = [], []
        recipe, given = "sst2.toml", list[str]()
        if start == "masked":
            run = arguments.runs / "sst2-masked"
            texts = [folder / "train.texts.tsv", f"validation_sources={folder / 'dev.texts.tsv'}"]
            heddle("train", HERE / "sst2-masked.toml", *texts, "--name", run)
            recipe, given = "sst2-tuned.toml", [f"from={run}"]
        if start == "vectors":
            vectors = arguments.runs / "sst2-vectors.txt"
            heddle("vectors", "train", folder / "train.texts.tsv", "dim=128", "--out", vectors)
            given = [f"vectors={vectors}"]
        for seed in range(arguments.seeds):
            run = arguments.runs / f"sst2-{start}-{seed}"
            seconds.append(heddle("train", HERE / recipe, *settings, *given, f"seed={seed}", "--name", run))
            accuracy.append(100 * asked("eval", run, folder / "dev.tsv")["accuracy"])
        rows.append([start, spread(accuracy), minutes(seconds)])
    report(["started from", "accuracy, %", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
