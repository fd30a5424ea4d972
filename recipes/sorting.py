"""`bycroft-nano` sorts six letters: the share of all 729 sequences that it sorts without a mistake, over several seeds.

    python recipes/sorting.py [--seeds 3 --runs DIR] [--json FILE]

The model reads six letters and a boundary, and writes the letters in order. It trains on 300 of the sequences and is tested on all.
"""

import random
from itertools import product

from common import HERE, heddle, heddle_json, minutes, parser, report, spread

TRAINED = 300


def main() -> None:
    arguments = parser(__doc__, seeds=3).parse_args()
    every = ["".join(letters) for letters in product("ABC", repeat=6)]
    folder = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    right, seconds = [], []
    for seed in range(arguments.seeds):
        rows = [(text, "".join(sorted(text))) for text in random.Random(seed).sample(every, TRAINED)]
        table = folder / f"sorting-{seed}.tsv"
        table.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
        run = folder / f"sorting-{seed}"
        seconds.append(heddle("train", HERE / "sorting.toml", table, f"seed={seed}", "--name", run))
        file = folder / "sorting.txt"
        file.write_text("".join(f"{text}\n" for text in every))
        answers = [
            each["best"][0]["text"] for each in heddle_json("translate", run, file, "--beams", 1)["translations"]
        ]
        pairs = zip(answers, every, strict=True)
        right.append(100 * sum(text == "".join(sorted(source)) for text, source in pairs) / len(every))
    report(["sequences sorted, %", "training"], [[spread(right), minutes(seconds)]], arguments.json)


if __name__ == "__main__":
    main()
