"""The demo's run, tuned on 500 generated exchanges: how many of 100 unseen ones it answers right in chat form.

    python recipes/exchanges.py [--seeds 3 --runs DIR --demo RUN] [--json FILE]

`--demo` names a run of `heddle train` without arguments; without it, one is trained. An exchange asks for one of the words of a
list: "Which is the second of loom, reed, warp?" - "reed".
"""

import json
import random
from pathlib import Path

from common import HERE, heddle, minutes, parser, report, spread

WORDS = [
    "loom",
    "warp",
    "weft",
    "reed",
    "heddle",
    "shuttle",
    "yarn",
    "thread",
    "cloth",
    "bobbin",
    "beam",
    "shed",
    "twill",
]
PLACES = ["first", "second", "third"]
TRAINED, TESTED = 500, 100


def exchanges(count: int, seed: int) -> list[tuple[str, str]]:
    """Different questions, each with its answer."""
    draw, pairs = random.Random(seed), dict[str, str]()
    while len(pairs) < count:
        words, place = draw.sample(WORDS, 3), draw.randrange(3)
        pairs[f"Which is the {PLACES[place]} of {', '.join(words)}?"] = words[place]
    return list(pairs.items())


def main() -> None:
    more = parser(__doc__, seeds=3)
    more.add_argument("--demo", type=Path)
    arguments = more.parse_args()
    folder = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    demo = arguments.demo
    if demo is None:
        heddle("train", "--name", demo := folder / "demo")
    right, seconds = [], []
    for seed in range(arguments.seeds):
        every = exchanges(TRAINED + TESTED, seed)
        file, run = folder / f"exchanges-{seed}.jsonl", folder / f"exchanges-{seed}"
        roles = ("user", "assistant")
        rows = (
            [{"role": role, "content": text} for role, text in zip(roles, each, strict=True)]
            for each in every[:TRAINED]
        )
        file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
        seconds.append(heddle("train", HERE / "exchanges.toml", file, f"from={demo}", f"seed={seed}", "--name", run))
        right.append(answered(run, every[TRAINED:]))
    report(["answered right, of 100", "tuning"], [[spread(right, 1), minutes(seconds)]], arguments.json)


def answered(run: Path, exchanges: list[tuple[str, str]]) -> int:
    """How many exchanges a run answers right, greedily."""
    import heddle as library
    from heddle.generate import reply

    model, tokenizer = library.load(run)
    assert tokenizer is not None  # every trained run has one
    messages = ([{"role": "user", "content": question}] for question, _ in exchanges)
    answers = [reply(model, tokenizer, each, temperature=0, max_tokens=20) for each in messages]
    return sum(text.strip() == answer for text, (_, answer) in zip(answers, exchanges, strict=True))


if __name__ == "__main__":
    main()
