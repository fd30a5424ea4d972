"""Prompt look-up compared with plain decoding, on text that repeats itself: GPT-2 124M with random weights, greedy, or a run.

    python benchmarks/lookup.py [RUN] [--precision fp32 --prompt 64 --tokens 128 --rounds 7] [--json FILE]

Random weights soon repeat themselves when decoded greedily, which is what look-up is for. Both take turns in one process, and their
ids must be the same; in bf16, a pass over several ids may round another way than passes over one.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import heddle
from heddle.config import SamplingConfig
from heddle.generate import Engine, PromptLookup
from heddle.model import Transformer
from heddle.model.precision import cast
from heddle.weights import load


def decoded(model: Transformer, prompt: list[int], tokens: int, guessing: bool) -> tuple[float, list[int], int]:
    """Seconds, the ids, and the number of steps."""
    began, ids, steps = time.perf_counter(), list[int](), 0
    engine = Engine.of(
        model,
        [prompt],
        SamplingConfig(max_tokens=tokens, temperature=0),
        draft_source=PromptLookup() if guessing else None,
    )
    while engine:
        ids += [event.token for event in engine.step()]
        steps += 1
    return time.perf_counter() - began, ids, steps


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.run is None:
        model = heddle.build(heddle.preset("gpt2-small"), seed=1)
    else:
        model, _ = load(arguments.run, "cpu")
    cast(model.eval(), arguments.precision)
    phrase = torch.randint(0, min(model.vocab_size, 1000), (16,), generator=torch.Generator().manual_seed(0)).tolist()
    prompt = (phrase * arguments.prompt)[: arguments.prompt]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds + 1):
        results = {guessing: decoded(model, prompt, arguments.tokens, guessing) for guessing in (False, True)}
        if arguments.precision == "fp32" and results[True][1] != results[False][1]:
            raise SystemExit("look-up has changed the ids")
        for guessing, (took, _, _) in results.items():
            seconds[guessing] += [took] if number else []  # the first round packs the weights
    ratios = [plain / guessed for plain, guessed in zip(seconds[False], seconds[True], strict=True)]
    return {
        **{name: getattr(arguments, name) for name in ("precision", "tokens", "rounds")},
        "prompt": len(prompt),
        "same ids": results[True][1] == results[False][1],
        "steps": {"plain": results[False][2], "look-up": results[True][2]},
        "tokens_per_second": {
            "plain": arguments.tokens / median(seconds[False]),
            "look-up": arguments.tokens / median(seconds[True]),
        },
        "ratio": median(ratios),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt, a phrase of 16 again and again")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = race(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
