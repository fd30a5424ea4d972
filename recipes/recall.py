"""Repeat the first token after a gap: how far each mixer can look, and what it learns of it (L1-75, C-17).

    python recipes/recall.py [--lengths 16 64 --steps 300 --seeds 3] [--json FILE]

Rows are random tokens; after the last one, which is always the same, the first has to be said again. All models have the same
width, depth, entry and training, and differ in one word of their config. Accuracy is over 2,000 new rows; chance is one in
eight. Steps are those that have to follow one another between the first token and the last.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import count

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "heads": 4},
    "GRU": {"kind": "recurrent", "cell": "gru"},
    "LSTM": {"kind": "recurrent", "cell": "lstm"},
    "convolution": {"kind": "convolution", "taps": 3},
    "linear": {"kind": "linear", "taps": 8},
}
TOKENS = 8  # the ninth asks


def trial(mixer: dict[str, Any], length: int, steps: int, seed: int) -> dict[str, Any]:
    """Train one model and test it."""
    import torch
    from torch.nn import functional as F

    from heddle.account import flops
    from heddle.config import TransformerConfig
    from heddle.model import build

    stack = {"depth": 2, "entry": {"positions": "learned"}, "block": {"mixer": mixer}}
    config = TransformerConfig.of(
        {"vocab_size": TOKENS + 1, "dim": 32, "context": length, "initial": {"std": 0.1}, "decoder": stack}
    )
    model = build(config, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    draw = torch.Generator().manual_seed(seed)

    def rows(number: int) -> tuple[Any, Any]:
        tokens = torch.randint(TOKENS, (number, length), generator=draw)
        tokens[:, -1] = TOKENS
        return tokens, tokens[:, 0]

    start = time.perf_counter()
    for _ in range(steps):
        tokens, first = rows(32)
        optimizer.zero_grad()
        F.cross_entropy(model.logits(model(tokens).hidden[:, -1]), first).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    tokens, first = rows(2000)
    with torch.no_grad():
        right = (model.eval().logits(model(tokens).hidden[:, -1]).argmax(-1) == first).double().mean()
    cost = flops(config)
    return {"path": cost.path, "steps": cost.steps, "accuracy": float(right), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    rows = []
    print(
        "| length | mixer | shortest path, layers | sequential steps | accuracy, median (each seed) |\n|---|---|---|---|---|"
    )
    for length in arguments.lengths:
        for name, mixer in MIXERS.items():
            trials = [trial(mixer, length, arguments.steps, seed) for seed in range(arguments.seeds)]
            right = [each["accuracy"] for each in trials]
            rows.append({"length": length, "mixer": name, **trials[0], "accuracy": right})
            reached = [trials[0][key] if trials[0][key] is not None else "out of reach" for key in ("path", "steps")]
            each = ", ".join(f"{value:.1%}" for value in right)
            print(f"| {length} | {name} | {reached[0]} | {reached[1]} | {median(right):.1%} ({each}) |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
