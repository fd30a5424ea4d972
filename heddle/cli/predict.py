"""`heddle classify`, `heddle fill` and `heddle embed`."""

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict, fields
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from safetensors.numpy import save

from heddle.cli.inputs import Inputs, Items, in_chunks, reader_of, report_cuts
from heddle.cli.models import Ready, open_model
from heddle.cli.output import console, find_run, pluralize, table
from heddle.cli.rows import ROWS, check_out, with_input, write_rows
from heddle.config.data import DataConfig
from heddle.config.embedding import Pooling
from heddle.errors import HeddleError
from heddle.predict.classify import (
    Prediction,
    TextClass,
    TextLabels,
    TextNumber,
    WordClasses,
    check_threshold,
    kind_of_head,
)
from heddle.predict.classify import classify as classes_of
from heddle.predict.embed import embed as vectors_of
from heddle.predict.fill import Filling, check_fills
from heddle.predict.fill import fill as filled
from heddle.predict.rows import Progress
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import write_file

SHOWN = 60  # characters of a text in a table
FIRST = 4  # numbers of a vector in a table
Vector = np.ndarray[Any, np.dtype[np.float32]]
RESULTS = {"classes": TextClass, "labels": TextLabels, "words": WordClasses, "number": TextNumber}


def classify(
    run: str,
    /,
    *texts: str,
    pair: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    device: str = "auto",
    encoding: str = "utf-8",
    skip_invalid: bool = False,
    json: bool = False,
) -> None:
    """Predict the class or the labels of texts or of pairs, or the class of words, with probabilities; or a number.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    texts
        Texts; files with a text per line; tables with a text per row (.jsonl, .csv, .tsv, .parquet); or - for standard input, which
        has a text or a JSON object per line. An argument that names a file is read. After --, texts may begin with a
        hyphen.
    pair
        The second text of a pair; once for each text.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    pair_column
        Column of the second text of a pair in tables. Defaults to the one that the run was trained on.
    threshold
        Of a run that gives a text several labels: those with a larger probability. Defaults to the run's head.threshold.
    out
        Write the results to this new file, a row for each row of the input with its columns: .csv, .jsonl or .parquet.
    device
        auto, cpu, cuda or mps.
    encoding
        Encoding of the files, such as cp1252.
    skip_invalid
        Leave out malformed rows and lines, and say how many there are.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
    if out is not None:
        check_out(out)
    ready, tokenizer = _opened(run, device)
    kind = kind_of_head(ready.model)
    check_threshold(ready.model, threshold)
    columns = (ready.config.data or DataConfig()).columns()
    columns |= {name: said for name, said in (("text", text_column), ("pair", pair_column)) if said is not None}
    single = ready.config.data is not None and "pair" not in ready.config.data.columns()
    pairs = pair is not None or "pair" in columns
    if pairs and kind == "words":
        raise HeddleError("--pair and --pair-column do not apply to a run that classifies words")
    if pairs and single:
        raise HeddleError(f"{run} reads single texts: leave out --pair and --pair-column")
    inputs = Inputs(
        ("text", "pair") if pairs else ("text",),
        columns,
        "tokens" if kind == "words" else "classes",
        reader_of(encoding, skip_invalid),
    )
    items = inputs.read(texts, pair or ())
    cut = 0
    results: list[dict[str, Any]] = []
    nothing = dict.fromkeys(field.name for field in fields(RESULTS[kind]))
    for chunk, found in in_chunks(items, lambda some, done: classes_of(ready.model, tokenizer, some, done, threshold)):
        cut += sum(each.cut for each in found if each)
        if out is not None:
            results += [_predicted(kind, each) for each in found]
        elif json:
            for item, each in zip(chunk, found, strict=True):
                texts_of = zip(inputs.fields, item if pairs else (item,), strict=True)
                _line({**dict(texts_of), **(asdict(each) if each else nothing)})
        else:
            _show_classes(chunk, found)
    report_cuts(cut, len(items), ready.model.config.context, pairs)
    if out is not None:
        _write(out, items, results, json)


def fill(
    run: str,
    /,
    *texts: str,
    top: int = 5,
    text_column: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    encoding: str = "utf-8",
    skip_invalid: bool = False,
    json: bool = False,
) -> None:
    """Fill in the masks of texts with the most probable tokens.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder that was trained to predict hidden tokens.
    texts
        Texts with masks, such as "the warp is [MASK]"; files with a text per line; tables with a text per row (.jsonl, .csv,
        .tsv, .parquet); or - for standard input, which has a text or a JSON object per line. An argument that names a file is read.
    top
        Tokens to show for each mask.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    out
        Write the results to this new file, a row for each row of the input with its columns: .csv, .jsonl or .parquet.
    device
        auto, cpu, cuda or mps.
    encoding
        Encoding of the files, such as cp1252.
    skip_invalid
        Leave out malformed rows and lines, and say how many there are.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
    if top < 1:
        raise HeddleError(f"top = {top}: must be at least 1")
    if out is not None:
        check_out(out)
    ready, tokenizer = _opened(run, device)
    check_fills(ready.model, tokenizer)
    items = _plain_inputs(ready, text_column, encoding, skip_invalid).read(texts)
    printed = console()
    results: list[dict[str, Any]] = []
    nothing = dict.fromkeys(field.name for field in fields(Filling) if field.name != "text")
    for chunk, found in in_chunks(items, lambda some, done: filled(ready.model, tokenizer, some, top, done)):
        for item, each in zip(chunk, found, strict=True):
            result = _filling(each) if each else {"filled": None, **nothing}
            if out is not None:
                results.append(result)
            elif json:
                _line({"text": item, **result})
            elif each is None:
                printed.print(item, markup=False)
            else:
                rows = [
                    [number, candidate.token.strip() or repr(candidate.token), f"{candidate.probability:.4f}"]
                    for number, candidates in enumerate(each.masks, start=1)
                    for candidate in candidates
                ]
                printed.print(table(["mask", "token", "probability"], rows))
                printed.print(each.text, markup=False)
    if out is not None:
        _write(out, items, results, json)


def embed(
    run: str,
    /,
    *texts: str,
    pooling: Pooling | None = None,
    normalise: bool = False,
    prompt: str | None = None,
    prompt_name: str | None = None,
    out: Path | None = None,
    text_column: str | None = None,
    device: str = "auto",
    encoding: str = "utf-8",
    skip_invalid: bool = False,
    json: bool = False,
) -> None:
    """Compute a vector for each text.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder, a decoder, or an encoder-decoder, whose encoder is used.
    texts
        Texts; files with a text per line; tables with a text per row (.jsonl, .csv, .tsv, .parquet); or - for standard input, which
        has a text or a JSON object per line. An argument that names a file is read. After --, texts may begin with a
        hyphen.
    pooling
        The mean of the vectors of a text's tokens, the first ([CLS]), the last, or their max. Defaults to what the model's
        head does, if it pools, else to the mean.
    normalise
        Scale every vector to length 1.
    prompt
        What comes before each text. Defaults to the model's default prompt, if it has one; "" for nothing.
    prompt_name
        The name of one of the model's prompts, which then comes before each text.
    out
        Write the vectors to this new file: .npy, or .safetensors with the name embeddings, [N D] in fp32; or .csv, .jsonl or
        .parquet, with the columns of the input. A text of blanks alone has NaN or null.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    device
        auto, cpu, cuda or mps.
    encoding
        Encoding of the files, such as cp1252.
    skip_invalid
        Leave out malformed rows and lines, and say how many there are.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
    if out is not None:
        check_out(out, (".npy", ".safetensors", *ROWS))
    ready, tokenizer = _opened(run, device)
    items = _plain_inputs(ready, text_column, encoding, skip_invalid).read(texts)
    rows: list[Vector | None] = []
    cut = 0

    def call(some: list[Any], done: Progress) -> list[tuple[Vector, bool]]:
        made = vectors_of(
            ready.model, tokenizer, some, pooling, normalise, done, prompt=prompt, prompt_name=prompt_name
        )
        return list(zip(made.vectors, made.cut, strict=True))

    for chunk, found in in_chunks(items, call):
        vectors = [None if each is None else each[0] for each in found]
        cut += sum(each[1] for each in found if each)
        rows += vectors
        if json and out is None:
            for item, vector in zip(chunk, vectors, strict=True):
                _line({"text": item, "embedding": None if vector is None else vector.tolist()})
    report_cuts(cut, len(items), ready.model.config.longest_text())
    dim = next(len(vector) for vector in rows if vector is not None)
    if out is not None:
        if out.suffix in ROWS:
            write_rows(
                out, with_input(items, [{"embedding": None if vector is None else vector.tolist()} for vector in rows])
            )
        else:
            write_file(out, _file(out.suffix, rows, dim))
        if json:
            _line({"file": str(out), "shape": [len(rows), dim], "blank": sum(items.blank)})
        else:
            console().print(f"{out}: {pluralize(len(rows), 'vector')} of {dim} numbers", markup=False)
    elif not json:
        shown = [
            [_short(item), "-" if vector is None else _numbers(vector.tolist())]
            for item, vector in zip(items, rows, strict=True)
        ]
        console().print(table(["text", f"vector of {dim} numbers (--out FILE, --json: all)"], shown))


def _opened(run: str, device: str) -> tuple[Ready, Tokenizer]:
    path = find_run(run)
    ready = open_model(path, device)
    if ready.tokenizer is None:
        raise HeddleError(f"{path} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    return ready, ready.tokenizer


def _plain_inputs(ready: Ready, column: str | None, encoding: str, skip_invalid: bool) -> Inputs:
    """Texts alone, in the column that the user names or the run was trained on."""
    trained = (ready.config.data or DataConfig()).columns()
    named = {"text": column} if column is not None else {name: trained[name] for name in ("text",) if name in trained}
    return Inputs(columns=named, reader=reader_of(encoding, skip_invalid))


def _predicted(kind: str, result: Prediction | None) -> dict[str, Any]:
    """A result as columns, with null for a text of blanks alone."""
    if isinstance(result, TextClass):
        return {"predicted": result.label, "probability": result.probability,
                "probabilities": dict(result.probabilities), "cut": result.cut}  # fmt: skip
    if isinstance(result, WordClasses):
        return {"predicted": [word.label for word in result.words],
                "probability": [word.probability for word in result.words], "cut": result.cut}  # fmt: skip
    if isinstance(result, TextLabels):
        return {"predicted": list(result.labels), "probabilities": dict(result.probabilities), "cut": result.cut}
    if isinstance(result, TextNumber):
        return {"predicted": result.number, "cut": result.cut}
    columns = {
        "number": ("predicted", "cut"),
        "labels": ("predicted", "probabilities", "cut"),
        "words": ("predicted", "probability", "cut"),
    }
    return dict.fromkeys(columns.get(kind, ("predicted", "probability", "probabilities", "cut")))


def _write(out: Path, items: Items, results: Sequence[dict[str, Any]], json: bool) -> None:
    """Write the results with the input's columns, and say so."""
    write_rows(out, with_input(items, results))
    if json:
        _line({"file": str(out), "rows": len(results), "blank": sum(items.blank)})
    else:
        console().print(f"{out}: {pluralize(len(results), 'row')}", markup=False)


def _show_classes(items: Sequence[Any], found: Sequence[Prediction | None]) -> None:
    out = console()
    first = next((each for each in found if each is not None), None)
    if isinstance(first, TextClass | TextLabels) and len(found) == 1:
        best = sorted(first.probabilities.items(), key=lambda pair: -pair[1])
        several = isinstance(first, TextLabels)
        has = {
            name: ["yes" if name in first.labels else ""] if isinstance(first, TextLabels) else [] for name, _ in best
        }
        names = ["label", "probability", "has it"] if several else ["class", "probability"]
        out.print(table(names, [[name, f"{share:.4f}", *has[name]] for name, share in best]))
        return
    rows: list[list[Any]] = []
    for item, each in zip(items, found, strict=True):
        if isinstance(each, WordClasses):
            said = (
                (word.label or "-", "-" if word.probability is None else f"{word.probability:.4f}")
                for word in each.words
            )
            rows += [[word.word, *pair] for word, pair in zip(each.words, said, strict=True)]
            rows.append(["", "", ""])
        elif each is None and isinstance(first, WordClasses):
            rows += [["", "-", "-"], ["", "", ""]]
        elif each is None:
            rows.append([_short(item), "-", *([] if isinstance(first, TextNumber | TextLabels) else ["-"])])
        elif isinstance(each, TextNumber):
            rows.append([_short(item), f"{each.number:.4f}"])
        elif isinstance(each, TextLabels):
            named = (f"{name} {each.probabilities[name]:.4f}" for name in each.labels)
            rows.append([_short(item), ", ".join(named) or "none"])
        else:
            rows.append([_short(item), each.label, f"{each.probability:.4f}"])
    if isinstance(first, WordClasses):
        out.print(table(["word", "class", "probability"], rows[:-1]))
    else:
        columns = {TextNumber: ["number"], TextLabels: ["labels, probability"]}
        out.print(table(["text", *columns.get(type(first), ["class", "probability"])], rows))


def _filling(found: Filling) -> dict[str, Any]:
    said = asdict(found)
    return {"filled": said.pop("text"), **said}


def _file(kind: str, rows: Sequence[Vector | None], dim: int) -> bytes:
    """The content of a file of vectors, NaN for texts of blanks alone."""
    vectors = np.stack([np.full(dim, np.nan, np.float32) if row is None else row for row in rows])
    if kind == ".safetensors":
        return save({"embeddings": vectors})
    data = BytesIO()
    np.save(data, vectors, allow_pickle=False)
    return data.getvalue()


def _numbers(vector: Sequence[float]) -> str:
    return " ".join(f"{number:.3f}" for number in vector[:FIRST]) + (" …" if len(vector) > FIRST else "")


def _short(item: Any) -> str:
    """A text, or the texts of a pair, in a table."""
    text = " ".join((" | ".join(item) if isinstance(item, tuple) else item).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _line(data: Any) -> None:
    """Print a JSON document in one line."""
    print(json_module.dumps(data, ensure_ascii=False))
