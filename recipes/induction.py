"""Two layers learn induction: the head that does it is found by `heddle.look`, and without it the model only guesses.

    python recipes/induction.py [--seeds 3 --runs DIR] [--json FILE]

Each line of the text is 8 to 30 random letters and digits, written twice. Only the second half can be predicted, only from the
first, and only by looking for the same sign, since the distance differs from line to line and signs may occur several times.
"""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import torch
from common import HERE, heddle, minutes, parser, report, spread

from heddle.look import Edit, ablate, edited, find_heads
from heddle.model import Transformer
from heddle.text import Tokenizer
from heddle.weights import load

SIGNS = ascii_letters + digits
LINES, SHORTEST, LONGEST, TESTED = 40_000, 8, 30, 400


def lines(seed: int, count: int) -> list[str]:
    """Random signs, each line written twice."""
    draw = random.Random(seed)
    return ["".join(draw.choices(SIGNS, k=draw.randint(SHORTEST, LONGEST))) * 2 for _ in range(count)]


def right(model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], edits: Sequence[Edit] = ()) -> float:
    """The share of signs of second halves, after their first, that the model predicts, in percent."""
    hits = total = 0
    with torch.no_grad(), edited(model, edits) if edits else nullcontext():
        for text in texts:
            tokens, half = torch.tensor([tokenizer.encode(text)]), len(text) // 2
            best = model.logits(model(tokens).hidden).argmax(-1)
            hits += int((best[:, half:-1] == tokens[:, half + 1 :]).sum())
            total += half - 1
    return 100 * hits / total


def looked_at(run: Path, seed: int) -> dict[str, Any]:
    """What the heads of a run do, and what it predicts with and without those with half of the largest induction score or more."""
    model, tokenizer = load(run)
    assert tokenizer is not None
    model.eval()
    ids = [tokenizer.encode(sign)[0] for sign in SIGNS]
    heads = find_heads(model, length=25, rows=16, seed=seed, ids=ids)
    largest = max(float(each.induction.max()) for each in heads.values())
    strong = {name: (each.induction >= largest / 2).nonzero().flatten().tolist() for name, each in heads.items()}
    edits = [ablate(f"{layer}.heads", heads=head_places) for layer, head_places in strong.items() if head_places]
    texts = lines(1_000_000 + seed, TESTED)
    return {
        "heads": ", ".join(
            f"{layer.split('.')[1]}.{head}" for layer, head_places in strong.items() for head in head_places
        ),
        "named": [
            f"{layer.split('.')[1]}.{n}"
            for layer, each in heads.items()
            for n, name in enumerate(each.names())
            if name == "induction"
        ],
        "induction": largest,
        "previous": max(float(each.previous.max()) for each in heads.values()),
        "right": right(model, tokenizer, texts),
        "without": right(model, tokenizer, texts, edits),
    }


def main() -> None:
    arguments = parser(__doc__, seeds=3).parse_args()
    folder = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    scores, seconds = [], []
    for seed in range(arguments.seeds):
        text = folder / f"induction-{seed}.txt"
        text.write_text("\n".join(lines(seed, LINES)) + "\n")
        run = folder / f"induction-{seed}"
        seconds.append(heddle("train", HERE / "induction.toml", text, f"seed={seed}", "--name", run))
        scores.append(looked_at(run, seed))
    columns = [
        "named after induction",
        "switched off",
        "largest induction score",
        "largest previous-token score",
        "right, %",
        "without those, %",
    ]
    row: list[object] = ["; ".join(", ".join(each["named"]) or "none" for each in scores)]
    row.append("; ".join(each["heads"] for each in scores))
    row += [spread([each[name] for each in scores]) for name in ("induction", "previous", "right", "without")]
    report([*columns, "training"], [[*row, minutes(seconds)]], arguments.json)


if __name__ == "__main__":
    main()
