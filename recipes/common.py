"""What the recipes share: calling heddle's command line, saying on which machine, and a table of results."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NoReturn

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared/data"  # where the texts are, unless the user names another place


def heddle(*words: object, cwd: Path | None = None) -> float:
    """Call one command, whose output goes to stderr; the seconds that it took."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "heddle", *map(str, words)], stdout=sys.stderr, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return time.perf_counter() - began


def heddle_json(*words: object, cwd: Path | None = None) -> Any:
    """The document that a command prints with `--json`."""
    command = [sys.executable, "-m", "heddle", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


def machine() -> str:
    """The kind of this machine, in a few words."""
    cpu = Path("/proc/cpuinfo")
    units = "with" if cpu.is_file() and "avx512_bf16" in cpu.read_text() else "without"
    return f"{os.cpu_count()} cores {units} bf16 units"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and over several runs the standard deviation and each value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f} ({each})"


def minutes(seconds: Sequence[float]) -> str:
    """The mean time of a run."""
    return f"{mean(seconds) / 60:.1f} min"


def count(word: str) -> int:
    """A number of runs, for the parser: at least 1, since there is no mean of none."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


def absent(reason: str) -> NoReturn:
    """Stop with one line that says which data is not there, and the exit code of heddle's own refusals."""
    print(reason, file=sys.stderr)
    raise SystemExit(2)


def parser(description: str, seeds: int) -> argparse.ArgumentParser:
    """The options of every recipe."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--seeds", type=count, default=seeds, help="runs that differ only in their seed")
    made.add_argument("--runs", type=Path, default=Path("runs/recipes"), help="directory for the runs")
    made.add_argument("--json", type=Path, help="write the figures there too")
    return made


def report(columns: Sequence[str], rows: Sequence[Sequence[object]], to: Path | None) -> None:
    """Print a table in Markdown, and write it as JSON."""
    print(f"{machine()}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    if to is not None:
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        to.write_text(json.dumps({"machine": machine(), "rows": named}, indent=2) + "\n")
