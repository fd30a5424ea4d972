"""Tokenise a text by several processes, each on a root of its own and killed in between, and compare with a single process.

    python -m benchmarks.tokenise [--bytes 1e9] [--text FILE] [--parts 2] [--kills 3] [--piece 33554432] [--folder DIR]
                                  [--seed 0] [--json]

The text is FILE, by default random words, repeated with a number before each paragraph; a paragraph is a document. One process
makes a store. Then each part is made by a process that is killed with SIGKILL at random moments, once it has made another piece,
and started again. The roots are joined, and every file of the store must be equal, byte for byte.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from heddle.text import train_tokenizer

ROOT = Path(__file__).parents[1]
# The command line, with pieces of another size.
PROGRAM = "import sys, heddle.runs.pieces as pieces; pieces.PIECE = int(sys.argv.pop(1)); from heddle.cli.main import run; run()"
WORDS = ("warp", "weft", "heddle", "shed", "loom", "thread", "shuttle", "reed", "beam", "selvedge")


def paragraphs(text: Path | None, draw: random.Random) -> list[str]:
    """The paragraphs to repeat."""
    if text is not None:
        return [each for each in text.read_text(encoding="utf-8").split("\n\n") if each.strip()]
    return [" ".join(draw.choices(WORDS, k=draw.randrange(5, 80))) for _ in range(5000)]


def write_sources(folder: Path, size: int, repeated: Sequence[str]) -> int:
    """Write files of numbered documents until there are so many bytes of text; how many there are then."""
    folder.mkdir(parents=True)
    written = number = 0
    while written < size:
        with (folder / f"{number:012}.jsonl").open("w", encoding="utf-8") as stream:
            in_file = 0
            while in_file < min(size / 4, 1 << 26) and written < size:
                text = f"{number} {repeated[number % len(repeated)]}"
                stream.write(json.dumps({"text": text}) + "\n")
                number, written, in_file = number + 1, written + len(text.encode()), in_file + len(text.encode())
    return written


class Command:
    """`heddle data tokenize` of some sources, in processes of its own."""

    def __init__(self, sources: Path, tokenizer: Path, piece: int) -> None:
        self.words = [
            sys.executable,
            "-c",
            PROGRAM,
            str(piece),
            "data",
            "tokenize",
            str(sources),
            f"tokenizer={tokenizer}",
        ]
        self.words.append("workers=1")
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(self, store: Path, *more: str) -> subprocess.Popen[str]:
        words = [*self.words, f"store={store}", *more]
        return subprocess.Popen(
            words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, store: Path, *more: str) -> float:
        """Run it to its end, and return its seconds."""
        began = time.monotonic()
        process = self.start(store, *more)
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"it ended with {process.returncode}:\n{output}")
        return time.monotonic() - began

    def killed(self, store: Path, part: str, kills: int, draw: random.Random) -> int:
        """Make a part by processes that are killed, the last one not; how many were killed."""
        count = 0
        for _ in range(kills):
            before = whole(store)
            process = self.start(store, "--part", part)
            while process.poll() is None and whole(store) <= before:
                time.sleep(0.01)
            time.sleep(draw.random() * 0.5)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                count += 1
            process.communicate()
        self.finish(store, "--part", part)
        return count


def whole(store: Path) -> int:
    """How many pieces of a store are complete."""
    return sum(1 for _ in Path(f"{store}.pieces").glob("*/0*.json"))


def differences(one: Path, other: Path) -> Iterator[str]:
    """The files that differ in two stores."""
    for name in sorted({file.name for store in (one, other) for file in store.iterdir()}):
        files = [store / name for store in (one, other)]
        if not all(file.is_file() for file in files) or not equal(*files):
            yield name


def equal(one: Path, other: Path) -> bool:
    """Whether two files are equal, read a part at a time."""
    with one.open("rb") as first, other.open("rb") as second:
        while (part := first.read(1 << 24)) == second.read(1 << 24):
            if not part:
                return True
    return False


def compare(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Make the store both ways."""
    draw = random.Random(options.seed)
    repeated = paragraphs(options.text, draw)
    size = write_sources(folder / "sources", int(options.bytes), repeated)
    train_tokenizer("bpe", "\n".join(repeated)[: 1 << 20], 4096, ("<|endoftext|>",)).save(folder / "tokenizer.json")
    command = Command(folder / "sources", folder / "tokenizer.json", options.piece)
    result: dict[str, object] = {"bytes": size, "one_process_seconds": command.finish(folder / "alone")}
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    parts = {folder / f"root{number}": f"{number}/{options.parts}" for number in range(options.parts)}
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(command.killed, *each, options.kills, random.Random(draw.random())) for each in parts.items()
        ]
        result["kills"] = sum(each.result() for each in made)
    result["parts_seconds"] = time.monotonic() - began
    result["pieces"] = [whole(root) for root in parts]
    joined = [word for root in parts for word in ("--join", str(root))]
    result["join_seconds"] = command.finish(folder / "joined", *joined)
    result["token_bytes"] = sum(file.stat().st_size for file in (folder / "alone").glob("*.tokens"))
    result["differing_files"] = [*differences(folder / "alone", folder / "joined")]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="of each part")
    parser.add_argument("--piece", type=int, default=1 << 25, help="bytes of a piece's text")
    parser.add_argument("--folder", type=Path, help="where to work; needs about eight times the text's bytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = compare(Path(folder), options)
    if options.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name}: {value}" for name, value in result.items()))
    raise SystemExit(1 if result["differing_files"] else 0)


if __name__ == "__main__":
    main()
