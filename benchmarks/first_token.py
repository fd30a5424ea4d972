"""The time until `heddle generate` writes its first token, compared with starting Python and importing torch.

    python benchmarks/first_token.py RUN [--rounds 9] [--json FILE]

Both are processes that start anew; they take turns. The ratio is the median of the rounds' ratios.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

PROMPT = "The"


def first_token(run: Path) -> float:
    """Seconds until the first character after the prompt."""
    command = [sys.executable, "-m", "heddle", "generate", str(run), "--prompt", PROMPT, "--max-tokens", "50"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(len(PROMPT) + 1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds


def torch_imported() -> float:
    """Seconds of `python -c 'import torch'`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pairs = [(torch_imported(), first_token(arguments.run)) for _ in range(arguments.rounds + 1)][
        1:
    ]  # the first fills caches
    ratios = [own / other for other, own in pairs]
    result = {
        "rounds": arguments.rounds,
        "import torch, s": median(other for other, _ in pairs),
        "first token, s": median(own for _, own in pairs),
        "ratio": median(ratios),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
