"""`heddle tokenizer train | encode | decode`."""

import sys
from pathlib import Path
from typing import Literal

from heddle.cli.say import RUNS, console, document, table
from heddle.data.sources import describe, python_library, read_documents
from heddle.errors import HeddleError
from heddle.text.bpe import load_gpt2_merges
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer


def train(
    output: Path,
    /,
    *sources: str,
    kind: Literal["bpe", "characters", "bytes"] = "bpe",
    size: int = 4096,
    json: bool = False,
) -> None:
    """Train a tokenizer on text.

    Parameters
    ----------
    output
        Where tokenizer.json goes: a directory, or the file itself.
    sources
        Files, folders, globs; none: the Python standard library's sources.
    kind
        bpe, characters or bytes.
    size
        Ids in all, special tokens included (bpe).
    json
        One JSON document on stdout.
    """
    target = output if output.suffix == ".json" else output / "tokenizer.json"
    if target.exists():
        raise HeddleError(f"{target} already exists; choose another place")
    read = list(sources) or [str(path) for path in python_library()]
    described = describe(read)
    out = console(json)
    out.print(f"training on {described.documents:,} documents, {described.bytes / 1e6:,.1f} MB", markup=False)
    texts = (document_.text for document_ in read_documents(read))
    made = train_tokenizer(kind, texts, size, (END_OF_TEXT,))
    made.save(target)
    if json:
        document({"path": str(target), "kind": kind, "vocab_size": made.vocab_size, "bytes": described.bytes})
    else:
        out.print(f"{target}: {made.vocab_size:,} ids", markup=False)


def encode(tokenizer: Path, text: str | None = None, /, *, special: bool = False, json: bool = False) -> None:
    """Show the pieces and ids of a text.

    Parameters
    ----------
    tokenizer
        A tokenizer.json, a run, or GPT-2's vocab.bpe.
    text
        The text; without it, what stands on stdin.
    special
        Read special tokens written out in the text as such.
    json
        One JSON document on stdout.
    """
    read, text = _load(tokenizer), sys.stdin.read() if text is None else text
    ids = read.encode(text, allow_special=special)
    pieces = [read.decode([number]) for number in ids]
    if json:
        document(
            {
                "ids": ids,
                "pieces": pieces,
                "tokens": len(ids),
                "bytes": len(text.encode()),
                "vocab_size": read.vocab_size,
            }
        )
    else:
        console().print(
            table(["id", "piece"], [[str(number), repr(piece)] for number, piece in zip(ids, pieces, strict=True)])
        )
        console().print(f"{len(ids):,} tokens for {len(text.encode()):,} bytes", markup=False)


def decode(tokenizer: Path, /, *ids: int, json: bool = False) -> None:
    """Turn ids into text.

    Parameters
    ----------
    tokenizer
        A tokenizer.json, a run, or GPT-2's vocab.bpe.
    ids
        The ids; without any, the numbers on stdin.
    json
        One JSON document on stdout.
    """
    numbers = list(ids) or _numbers(sys.stdin.read())
    text = _load(tokenizer).decode(numbers)
    if json:
        document({"text": text})
    else:
        print(text)


def _numbers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise HeddleError(f"{wrong!r} is not an id; ids are whole numbers from 0")
    return [int(word) for word in words]


def _load(path: Path) -> Tokenizer:
    if not path.exists() and (RUNS / path).is_dir():
        path = RUNS / path
    return load_gpt2_merges(path) if path.suffix == ".bpe" else load_tokenizer(path)
