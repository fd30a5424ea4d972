"""`heddle vectors train | near | analogy`."""

import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from heddle.cli.options import Json
from heddle.cli.output import console, phases, pluralize, print_json, table
from heddle.cli.train import split_words
from heddle.config.base import read_table
from heddle.config.problems import origin
from heddle.config.vectors import VectorsConfig
from heddle.convert.word_vectors import Form, form_of
from heddle.data.sources.documents import TEXT, python_library, read_documents
from heddle.data.sources.files import standard_input
from heddle.data.sources.notes import Reader
from heddle.errors import HeddleError
from heddle.vectors import WordVectors, train_vectors
from heddle.weights.files import refuse_unwritable

VectorFile = Annotated[Path, Parameter(help="A word vector file, in word2vec's text or binary format or in GloVe's.")]


def train(*words: str, out: Path, form: Form | None = None, text: str = TEXT, json: Json = False) -> None:
    """Train word vectors: skip-gram, CBOW or GloVe.

    Parameters
    ----------
    words
        Sources (files, folders, globs, hf:NAME, -), at most one .toml settings file, and key=value settings such as method=glove
        or dim=50, listed below. The sources default to the Python standard library's source code.
    out
        Output file, such as vectors.txt or vectors.bin.
    form
        Output format: text or binary (word2vec), or glove, which is text without a header line. Defaults to binary for .bin files,
        else to glove for method=glove and to text for other methods.
    text
        Text column of tables (.jsonl, .csv, .tsv, .parquet, .arrow).
    """
    sources, config = _read(words)
    form = form_of(out, "glove" if form is None and config.method == "glove" and out.suffix != ".bin" else form)
    refuse_unwritable(out)
    out_console = console(json)
    started = time.monotonic()
    with standard_input(sources, ".txt") as files, phases(out_console) as report:
        reader = Reader()
        word_vectors = train_vectors(
            (document.text for document in read_documents(files, text, reader)), config, report
        )
        for line in reader.notes.lines():
            report(line)
    seconds = time.monotonic() - started
    word_vectors.save(out, form)
    passes = 1 if config.method == "glove" else config.complete().epochs or 1
    rate = word_vectors.tokens * passes / seconds
    if json:
        sizes = {"words": len(word_vectors), "dim": config.dim, "tokens": word_vectors.tokens}
        results = {"seconds": seconds, "words_per_second": rate, "losses": word_vectors.losses}
        print_json({"path": str(out), "form": form, **sizes, **config.complete().to_dict(), **results})
        return
    size = f"{pluralize(len(word_vectors), 'word')} of {pluralize(config.dim, 'dimension')}"
    out_console.print(f"{out}: {size}, {rate:,.0f} words/s, loss {word_vectors.losses[-1]:.4f}")
    out_console.print(f"heddle vectors near {out} WORD, heddle train … tokenizer=words vectors={out} dim={config.dim}")


def near(file: VectorFile, /, *words: str, count: int = 10, json: Json = False) -> None:
    """Show the nearest words by cosine similarity.

    Parameters
    ----------
    words
        The words whose neighbours to show.
    count
        Neighbours per word.
    """
    if not words:
        raise HeddleError("name a word: heddle vectors near FILE WORD")
    vectors = _load(file, json)
    neighbours = {word: vectors.near(word, count) for word in words}
    if json:
        print_json(
            {"path": str(file), "near": {word: _pairs_json(near_words) for word, near_words in neighbours.items()}}
        )
        return
    rows = [[word, other, f"{cosine:.4f}"] for word, near_words in neighbours.items() for other, cosine in near_words]
    console().print(table(["word", "near", "cosine"], rows))


def analogy(file: VectorFile, a: str, b: str, c: str, /, *, count: int = 10, json: Json = False) -> None:
    """Solve an analogy: A is to B as C is to …; man king woman should give queen.

    Parameters
    ----------
    a, b
        The related pair.
    c
        The word to find the counterpart of.
    count
        Number of answers, best first.
    """
    answers = _load(file, json).analogy(a, b, c, count)
    if json:
        print_json({"path": str(file), "a": a, "b": b, "c": c, "found": _pairs_json(answers)})
        return
    console().print(table([f"{a} : {b} = {c} : …", "cosine"], [[word, f"{cosine:.4f}"] for word, cosine in answers]))


def _read(words: tuple[str, ...]) -> tuple[list[str], VectorsConfig]:
    """Sources and settings; the command line overrides the settings file."""
    sources, file, settings = split_words(words, "settings file")
    data = {**(read_table(file) if file else {}), **settings}
    return sources or [str(path) for path in python_library()], VectorsConfig.of(data, origin(file, settings))


def _load(file: Path, json: bool) -> WordVectors:
    return WordVectors.read(file, console(json).print)


def _pairs_json(pairs: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "cosine": cosine} for word, cosine in pairs]
