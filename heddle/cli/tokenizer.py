"""`heddle tokenizer train | encode | decode | explain | compare`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from heddle.cli.options import Json, Text
from heddle.cli.output import RUNS, console, pluralize, print_json, table
from heddle.cli.streams import read_input
from heddle.data.sources.documents import Description, describe, python_library, read_documents
from heddle.data.sources.files import STDIN
from heddle.data.sources.notes import Reader
from heddle.errors import HeddleError
from heddle.text.base import Kind
from heddle.text.bpe import load_gpt2_merges
from heddle.text.compare import Cut
from heddle.text.compare import compare as compare_tokenizers
from heddle.text.explain import explain as explain_text
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from heddle.text.words import load_wordpiece_vocab

TokenizerFile = Annotated[Path, Parameter(help="A tokenizer.json, a run, GPT-2's vocab.bpe, or BERT's vocab.txt.")]


def train(
    output: Path,
    /,
    *sources: str,
    kind: Kind = "bpe",
    size: int = 4096,
    special: list[str] | None = None,
    json: Json = False,
) -> None:
    """Train a tokenizer on text.

    Parameters
    ----------
    output
        Where to write tokenizer.json: a directory, or the file itself.
    sources
        Files, folders, globs. Defaults to the Python standard library's source code.
    kind
        bytes, characters, words, bpe, wordpiece or unigram.
    size
        Maximum vocabulary size, including special tokens. Ignored by bytes (256 ids) and characters (one id per character).
    special
        A special token, such as <start_translation>, which is never split; may be repeated. <|endoftext|> is always added; only
        `heddle train` omits it, for characters of a single document.
    """
    target = output if output.suffix == ".json" else output / "tokenizer.json"
    if target.exists():
        raise HeddleError(f"{target} already exists; choose another path")
    if target != output and output.is_file():
        raise HeddleError(f"{output} is a file; give the output directory first, then the text files")
    paths = list(sources) or [str(path) for path in python_library()]
    out = console(json)
    description = _describe_sources(paths, out)
    texts = (document_.text for document_ in read_documents(paths, reader=Reader()))
    tokenizer = train_tokenizer(kind, texts, size, (END_OF_TEXT, *(special or ())), out.print)
    tokenizer.save(target)
    if json:
        data = {"path": str(target), "kind": kind, "vocab_size": tokenizer.vocab_size, "bytes": description.bytes}
        print_json({**data, "special": dict(tokenizer.special)})
    else:
        short = KINDS[kind].min_vocab_size and tokenizer.vocab_size < size
        note = f", since the text is too small for {size:,}" if short else ""
        out.print(f"{target}: {pluralize(tokenizer.vocab_size, 'id')}{note}")


def _describe_sources(sources: Sequence[str], out: Console) -> Description:
    """Describe and print the training text, and what is left out of it."""
    reader = Reader()
    description = describe(sources, reader=reader)
    summary = f"training on {pluralize(description.documents, 'document')}, {description.bytes / 1e6:,.1f} MB"
    for line in (summary, *reader.notes.lines()):
        out.print(line)
    return description


def encode(
    tokenizer: TokenizerFile,
    text: Text = None,
    /,
    *,
    special: bool = False,
    json: Json = False,
) -> None:
    """Show a text's tokens and ids.

    Parameters
    ----------
    text
        The text; by default, or with -, standard input.
    special
        Parse special tokens that are spelled out in the text.
    """
    loaded, text = _load(tokenizer), read_input() if text in (None, *STDIN) else text
    ids = loaded.encode(text, allow_special=special)
    pieces = [loaded.piece(id) for id in ids]
    if json:
        sizes = {"tokens": len(ids), "bytes": len(text.encode()), "vocab_size": loaded.vocab_size}
        print_json({"ids": ids, "pieces": pieces, **sizes})
    else:
        console().print(table(["id", "piece"], [[str(id), repr(piece)] for id, piece in zip(ids, pieces, strict=True)]))
        console().print(f"{pluralize(len(ids), 'token')} for {pluralize(len(text.encode()), 'byte')}")


def explain(tokenizer: TokenizerFile, text: Text = None, /, *, json: Json = False) -> None:
    """Show step by step how a text is cut: BPE's merges, WordPiece's longest matches, Unigram's best path.

    Parameters
    ----------
    text
        The text; by default, or with -, standard input.
    """
    explanation = explain_text(_load(tokenizer), read_input() if text in (None, *STDIN) else text)
    if json:
        print_json(asdict(explanation) | {"ids": explanation.ids})
    else:
        print(*explanation.lines(), sep="\n")


def decode(tokenizer: TokenizerFile, /, *ids: int, json: Json = False) -> None:
    """Decode ids to text.

    Parameters
    ----------
    ids
        Token ids. Defaults to the ids on standard input.
    """
    parsed = list(ids) or _parse_ids(read_input())
    text = _load(tokenizer).decode(parsed)
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
    json: Json = False,
) -> None:
    """Compare tokenizers of every kind on a text, each trained on the same text.

    Parameters
    ----------
    text
        The text to tokenize.
    sources
        Training text: files, folders, globs. Defaults to the Python standard library's source code.
    size
        Maximum vocabulary size, for the kinds that have one.
    kind
        Compare only this kind; may be repeated.
    """
    paths = list(sources) or [str(path) for path in python_library()]
    out = console(json)
    _describe_sources(paths, out)
    corpus = lambda: (document_.text for document_ in read_documents(paths, reader=Reader()))  # noqa: E731
    cuts = compare_tokenizers(text, corpus, size, kind or tuple(KINDS), progress=out.print)
    if json:
        kinds = [{**asdict(cut), "tokens": len(cut.ids)} for cut in cuts]
        print_json({"text": text, "characters": len(text), "bytes": len(text.encode()), "kinds": kinds})
        return
    columns = ["kind", "vocab size", "tokens", "unknown", "exact", "pieces"]
    tokens = [None if cut.error else len(cut.ids) for cut in cuts]
    rows = [
        [cut.kind, cut.vocab_size, count, cut.unknown, cut.exact, cut.error or _pieces_with_ids(cut)]
        for cut, count in zip(cuts, tokens, strict=True)
    ]
    out.print(table(columns, rows))


def _pieces_with_ids(cut: Cut) -> str:
    """Tokens with their ids, on one line."""
    return " ".join(f"{piece!r}:{id}" for piece, id in zip(cut.pieces, cut.ids, strict=True))


def _parse_ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    invalid = next((word for word in words if not word.isdecimal()), None)
    if invalid is not None:
        raise HeddleError(f"{invalid!r} is not an id; ids are whole numbers from 0")
    return [int(word) for word in words]


def _load(path: Path) -> Tokenizer:
    if not path.exists() and (RUNS / path).is_dir():
        path = RUNS / path
    if path.name == "vocab.txt":
        return load_wordpiece_vocab(path)
    return load_gpt2_merges(path) if path.suffix == ".bpe" else load_tokenizer(path)
