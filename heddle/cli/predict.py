"""`heddle classify`, `heddle fill` and `heddle embed`."""

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from safetensors.numpy import save

from heddle.cli.inputs import Inputs, in_chunks, told_cuts
from heddle.cli.models import Ready, open_model
from heddle.cli.say import console, find_run, pluralize, table
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
from heddle.predict.embed import Embeddings
from heddle.predict.embed import embed as vectors_of
from heddle.predict.fill import Filling, check_fills
from heddle.predict.fill import fill as filled
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import refuse_unwritable, write_file

SHOWN = 60  # characters of a text in a table
FIRST = 4  # numbers of a vector in a table


def classify(
    run: str,
    /,
    *texts: str,
    pair: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    threshold: float | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Predict the class or the labels of texts or of pairs, or the class of words, with probabilities; or a number.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    texts
        Texts; files with a text per line; tables with a text per row (.jsonl, .csv, .tsv); or - for standard input, which
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
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
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
    inputs = Inputs(("text", "pair") if pairs else ("text",), columns, "tokens" if kind == "words" else "classes")
    items = inputs.read(texts, pair or ())
    cut = 0
    for chunk, found in in_chunks(items, lambda some, done: classes_of(ready.model, tokenizer, some, done, threshold)):
        cut += sum(each.cut for each in found)
        if json:
            for item, each in zip(chunk, found, strict=True):
                said = zip(inputs.fields, item if pairs else (item,), strict=True)
                _line({**dict(said), **asdict(each)})
        else:
            _show_classes(chunk, found)
    told_cuts(cut, len(items), ready.model.config.context, pairs)


def fill(
    run: str, /, *texts: str, top: int = 5, text_column: str | None = None, device: str = "auto", json: bool = False
) -> None:
    """Fill in the masks of texts with the most probable tokens.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder that was trained to predict hidden tokens.
    texts
        Texts with masks, such as "the warp is [MASK]"; files with a text per line; tables with a text per row (.jsonl, .csv,
        .tsv); or - for standard input, which has a text or a JSON object per line. An argument that names a file is read.
    top
        Tokens to show for each mask.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
    if top < 1:
        raise HeddleError(f"top = {top}: must be at least 1")
    ready, tokenizer = _opened(run, device)
    check_fills(ready.model, tokenizer)
    items = _plain_inputs(ready, text_column).read(texts)
    out = console()
    for chunk, found in in_chunks(items, lambda some, done: filled(ready.model, tokenizer, some, top, done)):
        for item, each in zip(chunk, found, strict=True):
            if json:
                _line({"text": item, **_filling(each)})
                continue
            rows = [
                [number, candidate.token.strip() or repr(candidate.token), f"{candidate.probability:.4f}"]
                for number, candidates in enumerate(each.masks, start=1)
                for candidate in candidates
            ]
            out.print(table(["mask", "token", "probability"], rows))
            out.print(each.text, markup=False)


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
    json: bool = False,
) -> None:
    """Compute a vector for each text.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder, a decoder, or an encoder-decoder, whose encoder is used.
    texts
        Texts; files with a text per line; tables with a text per row (.jsonl, .csv, .tsv); or - for standard input, which
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
        Write the vectors to this new file: .npy, or .safetensors with the name embeddings, [N D] in fp32; or .jsonl with the
        texts.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout. Of several texts, each is one line.
    """
    if out is not None:
        if out.suffix not in (".npy", ".safetensors", ".jsonl"):
            raise HeddleError(f"--out {out}: must end in .npy, .safetensors or .jsonl")
        refuse_unwritable(out)
    ready, tokenizer = _opened(run, device)
    items = _plain_inputs(ready, text_column).read(texts)
    parts: list[Embeddings] = []
    for chunk, found in in_chunks(
        items,
        lambda some, done: vectors_of(
            ready.model, tokenizer, some, pooling, normalise, done, prompt=prompt, prompt_name=prompt_name
        ),
    ):
        parts.append(found)
        if json and out is None:
            for item, vector in zip(chunk, found.vectors.tolist(), strict=True):
                _line({"text": item, "embedding": vector})
    vectors = np.concatenate([part.vectors for part in parts])
    told_cuts(sum(sum(part.cut) for part in parts), len(items), ready.model.config.longest_text())
    if out is not None:
        write_file(out, _file(out.suffix, items, vectors))
        if json:
            _line({"file": str(out), "shape": list(vectors.shape)})
        else:
            console().print(f"{out}: {pluralize(len(vectors), 'vector')} of {vectors.shape[1]} numbers", markup=False)
    elif not json:
        rows = [[_short(item), _numbers(vector)] for item, vector in zip(items, vectors.tolist(), strict=True)]
        console().print(table(["text", f"vector of {vectors.shape[1]} numbers (--out FILE, --json: all)"], rows))


def _opened(run: str, device: str) -> tuple[Ready, Tokenizer]:
    path = find_run(run)
    ready = open_model(path, device)
    if ready.tokenizer is None:
        raise HeddleError(f"{path} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    return ready, ready.tokenizer


def _plain_inputs(ready: Ready, column: str | None) -> Inputs:
    """Texts alone, in the column that the user names or the run was trained on."""
    trained = (ready.config.data or DataConfig()).columns()
    named = {"text": column} if column is not None else {name: trained[name] for name in ("text",) if name in trained}
    return Inputs(columns=named)


def _show_classes(items: Sequence[Any], found: Sequence[Prediction]) -> None:
    out = console()
    first = found[0]
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
        elif isinstance(each, TextNumber):
            rows.append([_short(item), f"{each.number:.4f}"])
        elif isinstance(each, TextLabels):
            named = (f"{name} {each.probabilities[name]:.4f}" for name in each.labels)
            rows.append([_short(item), ", ".join(named) or "none"])
        else:
            rows.append([_short(item), each.label, f"{each.probability:.4f}"])
    if isinstance(found[0], WordClasses):
        out.print(table(["word", "class", "probability"], rows[:-1]))
    else:
        columns = {TextNumber: ["number"], TextLabels: ["labels, probability"]}
        out.print(table(["text", *columns.get(type(found[0]), ["class", "probability"])], rows))


def _filling(found: Filling) -> dict[str, Any]:
    said = asdict(found)
    return {"filled": said.pop("text"), **said}


def _file(kind: str, items: Sequence[str], vectors: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """The content of a file of vectors."""
    if kind == ".safetensors":
        return save({"embeddings": np.ascontiguousarray(vectors)})
    if kind == ".jsonl":
        lines = zip(items, vectors.tolist(), strict=True)
        said = ({"text": item, "embedding": vector} for item, vector in lines)
        return "".join(f"{json_module.dumps(each, ensure_ascii=False)}\n" for each in said).encode()
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
