"""Which optimizer learns more in equal time on this machine: heddle's Muon compared with AdamW, on two texts, over several seeds.

    python benchmarks/optimizers.py [--text input.txt] [--minutes 3] [--seeds 3] [--threads N] [--json FILE]

Every run is `heddle train` with `minutes=`, which measures the machine and derives the number of steps, and its score is
`heddle eval` over all held-out text. The texts are the demo's (the Python standard library's sources, heddle's default model)
and, if `--text` names it, Shakespeare by characters in the shape of recipes/shakespeare.toml. Runs take turns.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

OPTIMIZERS = ("muon", "adamw")
SHAKESPEARE = ["tokenizer=characters", "depth=4", "dim=128", "heads=4", "context=64", "batch=12"]


def heddle(*words: str, folder: Path) -> dict[str, Any]:
    """Call the command line; return its JSON document."""
    command = [sys.executable, "-m", "heddle", *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="Shakespeare's text; without it only the demo's is used")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of each run; without it, all cores")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    texts: dict[str, list[str]] = {"the demo's": []}
    if arguments.text:
        texts["Shakespeare, characters"] = [str(arguments.text.resolve()), *SHAKESPEARE]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(arguments.seeds):
            for text, words in texts.items():
                for optimizer in OPTIMIZERS:
                    settings = [f"minutes={arguments.minutes:g}", f"seed={seed}", f"optimizer={optimizer}"]
                    settings += [f"threads={arguments.threads}"] if arguments.threads else []
                    began = time.perf_counter()
                    run = heddle("train", *words, *settings, folder=folder)
                    seconds = time.perf_counter() - began
                    scored = heddle("eval", run["run"], folder=folder)
                    rows.append(
                        {
                            "text": text,
                            "optimizer": optimizer,
                            "seed": seed,
                            "steps": run["steps"],
                            "seconds": seconds,
                            "precision": scored["precision"],
                            "loss": scored["loss"],
                            "bits_per_byte": scored["bits_per_byte"],
                        }
                    )
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(
        "| text | optimizer | steps, median | loss, each seed | loss, median | bits per byte, median | seconds, median |"
    )
    print("|---|---|---|---|---|---|---|")
    for text in texts:
        for optimizer in OPTIMIZERS:
            own_rows = [row for row in rows if (row["text"], row["optimizer"]) == (text, optimizer)]
            losses = ", ".join(f"{row['loss']:.4f}" for row in own_rows)
            middle = {
                key: median(row[key] for row in own_rows) for key in ("steps", "loss", "bits_per_byte", "seconds")
            }
            print(
                f"| {text} | {optimizer} | {middle['steps']:,.0f} | {losses} | {middle['loss']:.4f} "
                f"| {middle['bits_per_byte']:.4f} | {middle['seconds']:.0f} |"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
