"""A laptop T5 learns counts in digit words by span corruption, then to reverse such words: exact matches on unseen sequences.

python recipes/digits.py [--seeds 3 --runs DIR] [--json FILE]
"""

import random

from common import HERE, heddle, heddle_json, minutes, parser, report, spread

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TRAINED, TESTED = 5000, 500


def sequences(count: int, seed: int) -> list[list[str]]:
    """Different sequences of three to eight digit words."""
    draw, unique = random.Random(seed), dict[tuple[str, ...], None]()
    while len(unique) < count:
        unique[tuple(draw.choices(WORDS, k=draw.randint(3, 8)))] = None
    return [list(words) for words in unique]


def counts(number: int, seed: int) -> list[list[str]]:
    """Counting up or down from any digit, round and round: spans of random words could not be guessed, so would teach nothing."""
    draw, rows = random.Random(seed), list[list[str]]()
    for _ in range(number):
        start, stride, length = draw.randrange(10), draw.choice((1, -1)), draw.randint(4, 16)
        rows.append([WORDS[(start + stride * place) % 10] for place in range(length)])
    return rows


def main() -> None:
    arguments = parser(__doc__, seeds=3).parse_args()
    folder = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    exact, first, second = [], [], []
    for seed in range(arguments.seeds):
        every = sequences(TRAINED + TESTED, seed)
        text, table, test = (folder / f"digits-{seed}.{ending}" for ending in ("txt", "tsv", "test.txt"))
        text.write_text("".join(" ".join(words) + "\n" for words in counts(TRAINED, seed)))
        rows = "".join(f"{' '.join(words)}\t{' '.join(words[::-1])}\n" for words in every[:TRAINED])
        table.write_text(f"source\ttarget\n{rows}")
        test.write_text("".join(" ".join(words) + "\n" for words in every[TRAINED:]))
        base, run = folder / f"digits-base-{seed}", folder / f"digits-{seed}"
        first.append(heddle("train", HERE / "digits-pretrain.toml", text, f"seed={seed}", "--name", base))
        second.append(heddle("train", HERE / "digits.toml", table, f"from={base}", f"seed={seed}", "--name", run))
        answers = [
            each["best"][0]["text"] for each in heddle_json("translate", run, test, "--beams", 1)["translations"]
        ]
        expected = [" ".join(words[::-1]) for words in every[TRAINED:]]
        exact.append(
            100 * sum(each.split() == right.split() for each, right in zip(answers, expected, strict=True)) / TESTED
        )
    columns = ["exact match, %", "span corruption", "fine-tuning"]
    report(columns, [[spread(exact), minutes(first), minutes(second)]], arguments.json)


if __name__ == "__main__":
    main()
