"""A mixture of experts compared with the dense model of equal active parameters: same text, same tokens, several seeds.

    python recipes/moe.py [SOURCE …] [--seeds 3 --runs DIR] [--json FILE]

The text is the Python standard library, unless others are named. An expert is dead if it got under 1/(10 E) of the routed tokens of
its layer over the last 100 steps.
"""

import json
from collections import defaultdict
from pathlib import Path

from common import HERE, heddle, heddle_json, minutes, parser, report, spread

LAST = 100  # steps


def dead_experts(run: Path) -> int:
    """How many experts of a run are dead at its end."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if any(name.startswith("expert_load/") for name in line)][-LAST:]
    loads: dict[str, list[int]] = defaultdict(list)
    for line in steps:
        for name, load in line.items():
            if name.startswith("expert_load/"):
                before = loads[name] or [0] * len(load)
                loads[name] = [a + b for a, b in zip(before, load, strict=True)]
    return sum(count < sum(load) / (10 * len(load)) for load in loads.values() for count in load)


def main() -> None:
    more = parser(__doc__, seeds=3)
    more.add_argument("sources", nargs="*")
    arguments = more.parse_args()
    store = arguments.runs / "moe-tokens"
    rows = []
    for name in ("moe", "dense"):
        losses, seconds, dead = [], [], 0
        for seed in range(arguments.seeds):
            run = arguments.runs / f"{name}-{seed}"
            words = [HERE / f"{name}.toml", *arguments.sources, f"store={store}", f"seed={seed}", "--name", run]
            seconds.append(heddle("train", *words))
            losses.append(heddle_json("eval", run)["loss"])
            dead += dead_experts(run) if name == "moe" else 0
        rows.append([name, spread(losses, 4), dead if name == "moe" else "-", minutes(seconds)])
    report(["feed-forward", "validation loss", "dead experts", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
