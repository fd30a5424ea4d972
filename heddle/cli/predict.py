"""`heddle classify`, `heddle fill` and `heddle embed`."""

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from heddle.cli.inputs import read_items, report_truncated_texts, tell
from heddle.cli.models import Ready, open_model, tokenizer_of
from heddle.cli.options import Device, Encoding, PairColumn, Run, SkipInvalid, TextColumn, TextList
from heddle.cli.output import console, find_run, pluralize, table
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
from heddle.predict.classify import classify as classify_texts
from heddle.predict.embed import embed as embed_texts
from heddle.predict.fill import check_fills
from heddle.predict.fill import fill as fill_texts
from heddle.predict.inputs import Inputs, Items, in_chunks, reader_of
from heddle.predict.result_files import (
    ROWS,
    Vector,
    add_input_columns,
    check_out,
    filling_columns,
    result_columns,
    result_fields,
    write_rows,
    write_vectors,
)
from heddle.predict.rows import Progress
from heddle.text.tokenizer import Tokenizer

SHOWN = 60  # characters of a text in a table
FIRST = 4  # dimensions of a vector in a table
TextsOrFiles = Annotated[
    str,
    Parameter(
        help="Texts; files with one text per line; tables with one text per row (.jsonl, .csv, .tsv, .parquet); or - for "
        "standard input, with one text or JSON object per line. Arguments that name an existing file are read as files. "
        "After --, texts may begin with a hyphen."
    ),
]
ResultFile = Annotated[
    Path | None,
    Parameter(
        help="Write the results to this new .csv, .jsonl or .parquet file, with one row per input row and its columns."
    ),
]
JsonLines = Annotated[bool, Parameter(help="One JSON document on stdout; JSON lines for several texts.")]


def classify(
    run: Run,
    /,
    *texts: TextsOrFiles,
    pair: TextList = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    threshold: float | None = None,
    out: ResultFile = None,
    device: Device = "auto",
    encoding: Encoding = "utf-8",
    skip_invalid: SkipInvalid = False,
    json: JsonLines = False,
) -> None:
    """Classify texts, text pairs or words, with probabilities, or predict a number.

    Parameters
    ----------
    pair
        The second text of a pair; give it once per text.
    threshold
        For multi-label runs: the probability from which a label is predicted. Defaults to the run's head.threshold.
    """
    if out is not None:
        check_out(out)
    ready, tokenizer = _open(run, device)
    head_kind = kind_of_head(ready.model)
    check_threshold(ready.model, threshold)
    columns = (ready.config.data or DataConfig()).columns()
    columns |= {name: column for name, column in (("text", text_column), ("pair", pair_column)) if column is not None}
    reads_single = ready.config.data is not None and "pair" not in ready.config.data.columns()
    pairs = pair is not None or "pair" in columns
    if pairs and head_kind == "words":
        raise HeddleError("--pair and --pair-column do not apply to a run that classifies words")
    if pairs and reads_single:
        raise HeddleError(f"{run} reads single texts: leave out --pair and --pair-column")
    inputs = Inputs(
        ("text", "pair") if pairs else ("text",),
        columns,
        "tokens" if head_kind == "words" else "classes",
        reader_of(encoding, skip_invalid),
    )
    items = read_items(inputs, texts, pair or ())
    truncated = 0
    results: list[dict[str, Any]] = []
    for chunk, predictions in in_chunks(
        items, lambda batch, done: classify_texts(ready.model, tokenizer, batch, done, threshold), tell
    ):
        truncated += sum(prediction.cut for prediction in predictions if prediction)
        if out is not None:
            results += [result_columns(head_kind, prediction) for prediction in predictions]
        elif json:
            for item, prediction in zip(chunk, predictions, strict=True):
                named_texts = zip(inputs.fields, item if pairs else (item,), strict=True)
                _print_json_line({**dict(named_texts), **result_fields(head_kind, prediction)})
        else:
            _print_predictions(chunk, predictions)
    report_truncated_texts(truncated, len(items), ready.model.config.context, pairs)
    if out is not None:
        _write_results(out, items, results, json)


def fill(
    run: str,
    /,
    *texts: str,
    top: int = 5,
    text_column: TextColumn = None,
    out: ResultFile = None,
    device: Device = "auto",
    encoding: Encoding = "utf-8",
    skip_invalid: SkipInvalid = False,
    json: JsonLines = False,
) -> None:
    """Fill in masked tokens with the most probable ones.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder trained with masked language modeling.
    texts
        Texts with masks, such as "the warp is [MASK]"; files with one text per line; tables with one text per row (.jsonl, .csv,
        .tsv, .parquet); or - for standard input, with one text or JSON object per line. Arguments that name an existing file are
        read as files.
    top
        Number of candidate tokens per mask.
    """
    if top < 1:
        raise HeddleError(f"top = {top}: must be at least 1")
    if out is not None:
        check_out(out)
    ready, tokenizer = _open(run, device)
    check_fills(ready.model, tokenizer)
    items = read_items(_text_inputs(ready, text_column, encoding, skip_invalid), texts)
    output = console()
    results: list[dict[str, Any]] = []
    for chunk, fillings in in_chunks(
        items, lambda batch, done: fill_texts(ready.model, tokenizer, batch, top, done), tell
    ):
        for item, filling in zip(chunk, fillings, strict=True):
            result = filling_columns(filling)
            if out is not None:
                results.append(result)
            elif json:
                _print_json_line({"text": item, **result})
            elif filling is None:
                output.print(item)
            else:
                rows = [
                    [number, candidate.token.strip() or repr(candidate.token), f"{candidate.probability:.4f}"]
                    for number, candidates in enumerate(filling.masks, start=1)
                    for candidate in candidates
                ]
                output.print(table(["mask", "token", "probability"], rows))
                output.print(filling.text)
    if out is not None:
        _write_results(out, items, results, json)


def embed(
    run: str,
    /,
    *texts: TextsOrFiles,
    pooling: Pooling | None = None,
    normalise: bool = False,
    prompt: str | None = None,
    prompt_name: str | None = None,
    out: Path | None = None,
    text_column: TextColumn = None,
    device: Device = "auto",
    encoding: Encoding = "utf-8",
    skip_invalid: SkipInvalid = False,
    json: JsonLines = False,
) -> None:
    """Compute text embeddings.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder, a decoder, or an encoder-decoder (its encoder is used).
    pooling
        How to pool the token vectors: mean, max, first ([CLS]) or last. Defaults to the pooling of the model's head, else to
        the mean.
    normalise
        Scale each vector to unit length.
    prompt
        Text to put before each input. Defaults to the model's default prompt, if it has one; "" for none.
    prompt_name
        Name of one of the model's prompts, to put before each input.
    out
        Write the vectors to this new file: .npy or .safetensors (tensor "embeddings"), [N D] in fp32; or .csv, .jsonl or .parquet
        with the input's columns. Empty texts get NaN or null.
    """
    if out is not None:
        check_out(out, (".npy", ".safetensors", *ROWS))
    ready, tokenizer = _open(run, device)
    items = read_items(_text_inputs(ready, text_column, encoding, skip_invalid), texts)
    rows: list[Vector | None] = []
    truncated = 0

    def call(batch: list[Any], done: Progress) -> list[tuple[Vector, bool]]:
        embedded = embed_texts(
            ready.model, tokenizer, batch, pooling, normalise, done, prompt=prompt, prompt_name=prompt_name
        )
        return list(zip(embedded.vectors, embedded.cut, strict=True))

    for chunk, results in in_chunks(items, call, tell):
        vectors = [None if result is None else result[0] for result in results]
        truncated += sum(result[1] for result in results if result)
        rows += vectors
        if json and out is None:
            for item, vector in zip(chunk, vectors, strict=True):
                _print_json_line({"text": item, "embedding": None if vector is None else vector.tolist()})
    report_truncated_texts(truncated, len(items), ready.model.config.longest_text())
    dim = next(len(vector) for vector in rows if vector is not None)
    if out is not None:
        if out.suffix in ROWS:
            write_rows(
                out,
                add_input_columns(
                    items.rows, [{"embedding": None if vector is None else vector.tolist()} for vector in rows]
                ),
            )
        else:
            write_vectors(out, rows, dim)
        if json:
            _print_json_line({"file": str(out), "shape": [len(rows), dim], "blank": sum(items.empty)})
        else:
            console().print(f"{out}: {pluralize(len(rows), 'vector')} of {dim} dimensions")
    elif not json:
        table_rows = [
            [_shorten(item), "-" if vector is None else _format_vector(vector.tolist())]
            for item, vector in zip(items, rows, strict=True)
        ]
        console().print(table(["text", f"vector of {dim} dimensions (--out FILE or --json: all)"], table_rows))


def _open(run: str, device: str) -> tuple[Ready, Tokenizer]:
    path = find_run(run)
    ready = open_model(path, device)
    return ready, tokenizer_of(ready, path)


def _text_inputs(ready: Ready, column: str | None, encoding: str, skip_invalid: bool) -> Inputs:
    """Inputs of single texts, in the given column or the one that the run was trained on."""
    trained_columns = (ready.config.data or DataConfig()).columns()
    columns = (
        {"text": column}
        if column is not None
        else {name: trained_columns[name] for name in ("text",) if name in trained_columns}
    )
    return Inputs(columns=columns, reader=reader_of(encoding, skip_invalid))


def _write_results(out: Path, items: Items, results: Sequence[dict[str, Any]], json: bool) -> None:
    """Write the results with the input's columns, and report the file."""
    write_rows(out, add_input_columns(items.rows, results))
    if json:
        _print_json_line({"file": str(out), "rows": len(results), "blank": sum(items.empty)})
    else:
        console().print(f"{out}: {pluralize(len(results), 'row')}")


def _print_predictions(items: Sequence[Any], predictions: Sequence[Prediction | None]) -> None:
    out = console()
    first = next((prediction for prediction in predictions if prediction is not None), None)
    if isinstance(first, TextClass | TextLabels) and len(predictions) == 1:
        ranked = sorted(first.probabilities.items(), key=lambda pair: -pair[1])
        multi_label = isinstance(first, TextLabels)
        predicted = {
            name: ["yes" if name in first.labels else ""] if isinstance(first, TextLabels) else [] for name, _ in ranked
        }
        names = ["label", "probability", "predicted"] if multi_label else ["class", "probability"]
        out.print(table(names, [[name, f"{probability:.4f}", *predicted[name]] for name, probability in ranked]))
        return
    rows: list[list[Any]] = []
    for item, prediction in zip(items, predictions, strict=True):
        if isinstance(prediction, WordClasses):
            cells = (
                (word.label or "-", "-" if word.probability is None else f"{word.probability:.4f}")
                for word in prediction.words
            )
            rows += [[word.word, *pair] for word, pair in zip(prediction.words, cells, strict=True)]
            rows.append(["", "", ""])
        elif prediction is None and isinstance(first, WordClasses):
            rows += [["", "-", "-"], ["", "", ""]]
        elif prediction is None:
            rows.append([_shorten(item), "-", *([] if isinstance(first, TextNumber | TextLabels) else ["-"])])
        elif isinstance(prediction, TextNumber):
            rows.append([_shorten(item), f"{prediction.number:.4f}"])
        elif isinstance(prediction, TextLabels):
            labels = (f"{name} {prediction.probabilities[name]:.4f}" for name in prediction.labels)
            rows.append([_shorten(item), ", ".join(labels) or "none"])
        else:
            rows.append([_shorten(item), prediction.label, f"{prediction.probability:.4f}"])
    if isinstance(first, WordClasses):
        out.print(table(["word", "class", "probability"], rows[:-1]))
    else:
        columns = {TextNumber: ["number"], TextLabels: ["labels, probability"]}
        out.print(table(["text", *columns.get(type(first), ["class", "probability"])], rows))


def _format_vector(vector: Sequence[float]) -> str:
    return " ".join(f"{number:.3f}" for number in vector[:FIRST]) + (" …" if len(vector) > FIRST else "")


def _shorten(item: Any) -> str:
    """A text or pair, truncated for a table."""
    text = " ".join((" | ".join(item) if isinstance(item, tuple) else item).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _print_json_line(data: Any) -> None:
    """Print a JSON document on one line."""
    print(json_module.dumps(data, ensure_ascii=False))
