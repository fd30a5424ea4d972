"""`heddle tokenizer train | encode | decode | compare`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from heddle.cli.output import RUNS, console, pluralize, print_json, table
from heddle.cli.streams import read_input
from heddle.data.sources.documents import Description, describe, python_library, read_documents
from heddle.data.sources.files import STDIN
from heddle.data.sources.notes import Reader
from heddle.errors import HeddleError
from heddle.text.base import Kind
from heddle.text.bpe import load_gpt2_merges
from heddle.text.compare import Cut
from heddle.text.compare import compare as cut_by_all
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from heddle.text.words import load_wordpiece_vocab


def train(
    output: Path,
    /,
    *sources: str,
    kind: Kind = "bpe",
    size: int = 4096,
    special: list[str] | None = None,
    json: bool = False,
) -> None:
    """Train a tokenizer on text.

    Parameters
    ----------
    output
        Where to write tokenizer.json: a directory, or the file itself.
    sources
        Files, folders, globs. Defaults to the Python standard library's sources.
    kind
        bytes, characters, words, bpe, wordpiece or unigram.
    size
        Most ids in all, including special tokens; bytes takes 256 and characters one for each character, plus those.
    special
        A token that is one id and never split, such as <start_translation>; may be repeated. <|endoftext|> is always
        included; only `heddle train` leaves it out, for the characters of a single document.
    json
        One JSON document on stdout.
    """
    target = output if output.suffix == ".json" else output / "tokenizer.json"
    if target.exists():
        raise HeddleError(f"{target} already exists; choose another place")
    if target != output and output.is_file():
        raise HeddleError(f"{output} is a file; name a directory for tokenizer.json first, and then the text")
    read = list(sources) or [str(path) for path in python_library()]
    out = console(json)
    described = _described(read, out)
    texts = (document_.text for document_ in read_documents(read, reader=Reader()))
    say = lambda line: out.print(line, markup=False)  # noqa: E731
    made = train_tokenizer(kind, texts, size, (END_OF_TEXT, *(special or ())), say)
    made.save(target)
    if json:
        shown = {"path": str(target), "kind": kind, "vocab_size": made.vocab_size, "bytes": described.bytes}
        print_json({**shown, "special": dict(made.special)})
    else:
        more = f", as the text does not give {size:,}" if KINDS[kind].min_vocab_size and made.vocab_size < size else ""
        out.print(f"{target}: {pluralize(made.vocab_size, 'id')}{more}", markup=False)


def _described(sources: Sequence[str], out: Console) -> Description:
    """What a tokenizer is trained on, which is printed, and what is left out of it."""
    reader = Reader()
    described = describe(sources, reader=reader)
    of = f"training on {pluralize(described.documents, 'document')}, {described.bytes / 1e6:,.1f} MB"
    for line in (of, *reader.notes.lines()):
        out.print(line, markup=False)
    return described


def encode(
    tokenizer: Path,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    special: bool = False,
    json: bool = False,
) -> None:
    """Show the pieces and ids of a text.

    Parameters
    ----------
    tokenizer
        A tokenizer.json, a run, GPT-2's vocab.bpe, or BERT's vocab.txt.
    text
        The text; without it, or with -, standard input.
    special
        Encode special tokens that are written out in the text as special tokens.
    json
        One JSON document on stdout.
    """
    read, text = _load(tokenizer), read_input() if text in (None, *STDIN) else text
    ids = read.encode(text, allow_special=special)
    pieces = [read.piece(number) for number in ids]
    if json:
        print_json(
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
        console().print(f"{pluralize(len(ids), 'token')} for {pluralize(len(text.encode()), 'byte')}", markup=False)


def decode(tokenizer: Path, /, *ids: int, json: bool = False) -> None:
    """Convert ids to text.

    Parameters
    ----------
    tokenizer
        A tokenizer.json, a run, GPT-2's vocab.bpe, or BERT's vocab.txt.
    ids
        The ids; without any, the numbers on standard input.
    json
        One JSON document on stdout.
    """
    numbers = list(ids) or _parse_ids(read_input())
    text = _load(tokenizer).decode(numbers)
    if json:
        print_json({"text": text})
    else:
        print(text)


def compare(
    text: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *sources: str,
    size: int = 1000,
    kind: list[Kind] | None = None,
    json: bool = False,
) -> None:
    """Tokenize a text with every kind of tokenizer, each trained on the same text.

    Parameters
    ----------
    text
        The text to tokenize.
    sources
        What to train on: files, folders, globs. Defaults to the Python standard library's sources.
    size
        Most ids of each tokenizer, if its kind has a choice.
    kind
        Only this kind; may be repeated.
    json
        One JSON document on stdout.
    """
    read = list(sources) or [str(path) for path in python_library()]
    out = console(json)
    _described(read, out)
    say = lambda line: out.print(line, markup=False)  # noqa: E731
    corpus = lambda: (document_.text for document_ in read_documents(read, reader=Reader()))  # noqa: E731
    cuts = cut_by_all(text, corpus, size, kind or tuple(KINDS), progress=say)
    if json:
        kept = [{**asdict(cut), "tokens": len(cut.ids)} for cut in cuts]
        print_json({"text": text, "characters": len(text), "bytes": len(text.encode()), "kinds": kept})
        return
    columns = ["kind", "ids in all", "tokens", "unknown", "exact", "pieces"]
    rows = [
        [cut.kind, cut.vocab_size, None if cut.error else len(cut.ids), cut.unknown, cut.exact, cut.error or _row(cut)]
        for cut in cuts
    ]
    out.print(table(columns, rows))


def _row(cut: Cut) -> str:
    """Pieces with their ids, on one line."""
    return " ".join(f"{piece!r}:{id}" for piece, id in zip(cut.pieces, cut.ids, strict=True))


def _parse_ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise HeddleError(f"{wrong!r} is not an id; ids are whole numbers from 0")
    return [int(word) for word in words]


def _load(path: Path) -> Tokenizer:
    if not path.exists() and (RUNS / path).is_dir():
        path = RUNS / path
    if path.name == "vocab.txt":
        return load_wordpiece_vocab(path)
    return load_gpt2_merges(path) if path.suffix == ".bpe" else load_tokenizer(path)
