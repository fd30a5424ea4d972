"""`heddle translate`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from heddle.cli.inputs import EMPTY, Items, named_text, placed, reader_of, text_lines
from heddle.cli.models import Ready, open_model, strategy
from heddle.cli.output import bar, console, find_run, pluralize, print_json
from heddle.cli.streams import input_lines
from heddle.config.decoding import BeamConfig, WeightKind
from heddle.data.sources.examples import Example
from heddle.data.sources.files import STDIN
from heddle.errors import HeddleError
from heddle.generate.translate import Translation, learned_sources, sentinels
from heddle.generate.translate import translate as translated


def translate(
    run: str,
    /,
    *files: Path,
    prompt: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    beams: int | None = None,
    best: int = 1,
    length_penalty: float | None = None,
    early_stopping: Literal["no", "yes", "never"] | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram: int | None = None,
    crop: bool = False,
    rows: int = 128,
    encoding: str = "utf-8",
    weights: WeightKind = "trained",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Translate texts, line by line, by beam search.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder-decoder, or a decoder trained with task=translation.
    files
        Files with one source per line; an empty line stays empty. Defaults to standard input.
    prompt
        A source to translate, instead of files; may be repeated.
    beams
        Unfinished texts to keep at each step; 1 always takes the most probable token. Defaults, as other settings do, to what an
        imported model's files say, else to 5.
    best
        Translations of each source. With more than one, each line has the source's number, the score and the text.
    length_penalty
        A translation's score is its log probability divided by its length to this power. Defaults to 1.
    early_stopping
        When to stop: yes, as soon as there are as many finished texts as beams; no, when no unfinished one scores better as it
        is (the default); never, when none could at any length.
    max_tokens
        Longest translation, in tokens. Defaults to 200.
    min_tokens
        Tokens to generate before a translation may end.
    repetition_penalty
        Above 1, tokens that are already in the text become less probable.
    no_repeat_ngram
        No run of so many tokens may occur twice in a translation.
    crop
        Cut off the ends of sources that do not fit into the model's context, instead of refusing them.
    rows
        Sources that share each forward pass.
    encoding
        Encoding of the files and of standard input, such as cp1252.
    weights
        int8 or int4: round the weights, which takes less memory on a CPU, and less time with one text at once. See
        docs/serving.md for what it costs.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout.
    """
    asked = {
        "beams": beams,
        "best": best,
        "length_penalty": length_penalty,
        "early_stopping": {None: None, "no": False, "yes": True, "never": "never"}[early_stopping],
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
    }
    settings = {name: value for name, value in asked.items() if value is not None}
    BeamConfig.of(settings, where="translate")  # before anything takes time
    path = find_run(run)
    ready = open_model(path, device, weights)
    _check_translates(path, ready)
    config = strategy(ready, BeamConfig, settings)
    if ready.tokenizer is None:
        raise HeddleError(f"{path} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    sources = _sources(files, prompt, reader_of(encoding, skip_invalid=False).encoding)
    what = f"translating {pluralize(len(sources), 'line')}"
    with bar(console(as_json=True), what) as done, placed(sources.origins):
        special = sentinels(ready.config.task, ready.tokenizer)
        found = translated(ready.model, ready.tokenizer, sources, config, crop, rows, done, special)
    report_cuts([best for best, *_ in found], f"--max-tokens {config.max_tokens}, or the context is full")
    if json:
        held = {"run": str(path), "precision": ready.precision, "beam": config.to_dict()}
        print_json({**held, "translations": [_document(*each) for each in zip(sources, found, strict=True)]})
    else:
        sys.stdout.writelines(_lines(found, best))


def report_cuts(found: Sequence[Translation], why: str) -> None:
    """Say on standard error how many translations are cut off."""
    if cut := sum(each.finish in ("length", "context") for each in found):
        which = f"{cut:,} of {len(found):,} translations are" if len(found) > 1 else "the translation is"
        print(f"{which} cut off: {why}", file=sys.stderr)


def _check_translates(run: Path, ready: Ready) -> None:
    """Refuse a run that learned another task; one that fills in spans also answers a source, and an imported model has no task.

    Raises:
        HeddleError: it did.
    """
    if learned_sources(ready.config.task):
        return
    started = "" if ready.model.decoder is None else f", for example from={run}"
    raise HeddleError(f"{run} was not trained to translate; train one with task=translation{started}")


def _sources(files: Sequence[Path], prompts: list[str] | None, encoding: str) -> Items:
    """The texts to translate.

    Raises:
        HeddleError: prompts are given with files or an encoding, a file cannot be read, or every text is empty.
    """
    if prompts is not None and files:
        raise HeddleError("give files or --prompt, not both")
    if prompts is not None and encoding != "utf-8":
        raise HeddleError("--encoding is about files and standard input: leave it out with --prompt")
    found: list[tuple[str, str]] = []
    for number, text in enumerate(prompts or (), start=1):
        found.append((text, named_text(number, len(prompts or ()))))
    for file in () if prompts is not None else files or (Path(STDIN[1]),):
        piped = str(file) in STDIN
        lines = input_lines(encoding) if piped else text_lines(file, encoding)
        where = "standard input" if piped else str(file)
        found += [(line, f"{where}:{number}") for number, line in enumerate(lines, start=1)]
    if not any(text.strip() for text, _ in found):
        raise HeddleError(EMPTY)
    return Items((Example({"source": text}, None, origin), {"source": text}) for text, origin in found)


def _lines(found: Sequence[tuple[Translation, ...]], best: int) -> Iterator[str]:
    """What is printed: a line for each source, or for each of its translations."""
    for number, each in enumerate(found):
        for translation in each:
            text = " ".join(translation.text.splitlines())
            yield f"{text}\n" if best == 1 else f"{number}\t{translation.score:.4f}\t{text}\n"


def _document(source: str, found: Sequence[Translation]) -> dict[str, Any]:
    return {"source": source, "best": [vars(each) for each in found]}
