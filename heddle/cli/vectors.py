"""`heddle vectors train | near | analogy`."""

import os
import time
from pathlib import Path
from typing import Any

from heddle.cli.output import console, phases, pluralize, print_json, table
from heddle.config.base import parse_overrides, read_table
from heddle.config.vectors import VectorsConfig
from heddle.convert.word_vectors import Form, form_of
from heddle.data.sources.documents import TEXT, python_library, read_documents
from heddle.data.sources.files import standard_input
from heddle.data.sources.notes import Reader
from heddle.errors import HeddleError
from heddle.vectors import WordVectors, train_vectors
from heddle.weights.files import refuse_unwritable


def train(*words: str, out: Path, form: Form | None = None, text: str = TEXT, json: bool = False) -> None:
    """Learn word vectors: skip-gram, CBOW or GloVe.

    Parameters
    ----------
    words
        Sources (files, folders, globs, hf:NAME, -), at most one .toml file of settings, and key=value settings such as method=glove
        or dim=50, all listed below. The sources default to the Python standard library's.
    out
        The file to write, such as vectors.txt or vectors.bin.
    form
        text or binary as word2vec writes them, or glove, which is text without a first line of sizes. Defaults to binary for a .bin
        file, else to glove for method=glove and to text for the other methods.
    text
        Column of the text in tables: .jsonl, .csv, .tsv, .parquet, .arrow.
    json
        One JSON document on stdout.
    """
    sources, config = _read(words)
    form = form_of(out, "glove" if form is None and config.method == "glove" and out.suffix != ".bin" else form)
    refuse_unwritable(out)
    printed = console(json)
    began = time.monotonic()
    with standard_input(sources, ".txt") as files, phases(printed) as tell:
        reader = Reader()
        found = train_vectors((each.text for each in read_documents(files, text, reader)), config, tell)
        for line in reader.notes.lines():
            tell(line)
    seconds = time.monotonic() - began
    found.save(out, form)
    passes = 1 if config.method == "glove" else config.complete().epochs or 1
    rate = found.tokens * passes / seconds
    if json:
        sizes = {"words": len(found), "dim": config.dim, "tokens": found.tokens}
        speed = {"seconds": seconds, "words_per_second": rate}
        print_json(
            {"path": str(out), "form": form, **sizes, **config.complete().to_dict(), **speed, "losses": found.losses}
        )
        return
    what = f"{pluralize(len(found), 'word')} with {pluralize(config.dim, 'number')} each"
    printed.print(f"{out}: {what}, {rate:,.0f} words/s, loss {found.losses[-1]:.4f}", markup=False)
    printed.print(
        f"heddle vectors near {out} WORD, heddle train … tokenizer=words vectors={out} dim={config.dim}", markup=False
    )


def near(file: Path, /, *words: str, count: int = 10, json: bool = False) -> None:
    """Show the nearest words by cosine.

    Parameters
    ----------
    file
        A file of vectors, in word2vec's text or binary form or in GloVe's.
    words
        The words whose neighbours to show.
    count
        How many neighbours of each.
    json
        One JSON document on stdout.
    """
    if not words:
        raise HeddleError("name a word: heddle vectors near FILE WORD")
    vectors = _open(file, json)
    found = {word: vectors.near(word, count) for word in words}
    if json:
        print_json({"path": str(file), "near": {word: _listed(each) for word, each in found.items()}})
        return
    rows = [[word, other, f"{cosine:.4f}"] for word, each in found.items() for other, cosine in each]
    console().print(table(["word", "near", "cosine"], rows))


def analogy(file: Path, a: str, b: str, c: str, /, *, count: int = 10, json: bool = False) -> None:
    """Show what is to C as B is to A: man king woman should give queen.

    Parameters
    ----------
    file
        A file of vectors, in word2vec's text or binary form or in GloVe's.
    a, b
        Two words that are related.
    c
        The word whose relative to find.
    count
        How many answers, the best first.
    json
        One JSON document on stdout.
    """
    found = _open(file, json).analogy(a, b, c, count)
    if json:
        print_json({"path": str(file), "a": a, "b": b, "c": c, "found": _listed(found)})
        return
    console().print(table([f"{a} : {b} = {c} : …", "cosine"], [[word, f"{cosine:.4f}"] for word, cosine in found]))


def _read(words: tuple[str, ...]) -> tuple[list[str], VectorsConfig]:
    """Sources, and the settings of a file with those of the command line over them."""
    # os.path returns False where Path raises: a setting may be longer than any file name.
    plain = [word for word in words if "=" not in word or os.path.exists(word)]
    files = [word for word in plain if word.endswith(".toml")]
    if len(files) > 1:
        raise HeddleError(f"one file of settings at a time; got {' and '.join(files)}")
    settings: dict[str, Any] = read_table(files[0]) if files else {}
    settings |= parse_overrides(word for word in words if word not in plain)
    sources = [word for word in plain if word not in files] or [str(path) for path in python_library()]
    return sources, VectorsConfig.of(settings, files[0] if files else "settings")


def _open(file: Path, json: bool) -> WordVectors:
    printed = console(json)
    return WordVectors.read(file, lambda line: printed.print(line, markup=False))


def _listed(found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "cosine": cosine} for word, cosine in found]
