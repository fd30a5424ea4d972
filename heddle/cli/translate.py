"""`heddle translate`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from heddle.cli.models import Ready, decoding_config, open_model, tokenizer_of
from heddle.cli.options import (
    DecodingOptions,
    Device,
    Encoding,
    Json,
    NoRepeatNgram,
    Precision,
    RepetitionPenalty,
    TextList,
    Weights,
)
from heddle.cli.output import bar, console, find_run, pluralize, print_json
from heddle.cli.streams import input_lines
from heddle.config.decoding import BeamConfig
from heddle.data.sources.examples import Example
from heddle.data.sources.files import STDIN
from heddle.errors import HeddleError
from heddle.generate.translate import Translation, learned_sources, sentinels
from heddle.generate.translate import translate as translate_texts
from heddle.predict.inputs import EMPTY, Items, locating_errors, reader_of, text_label, text_lines


@dataclass(frozen=True, kw_only=True)
class BeamOptions(DecodingOptions):
    """Settings of `BeamConfig`."""

    beams: int | None = None
    """Beam width; 1 is greedy. This and other options default to an imported model's generation config, else to 5."""
    best: int = 1
    """Translations per source. With more than one, each output line has the source's number, the score and the text."""
    length_penalty: float | None = None
    """Divide a translation's log probability by its length to this power. Defaults to 1."""
    early_stopping: Annotated[
        Literal["no", "yes", "never"] | None,
        Parameter(
            help="When to stop: yes, once there are as many finished translations as beams; no (the default), once no "
            "unfinished beam scores better now; never, once none could score better at any length."
        ),
    ] = None
    max_tokens: int | None = None
    """Maximum tokens per translation. Defaults to 200."""
    min_tokens: int | None = None
    """Minimum tokens per translation."""
    repetition_penalty: RepetitionPenalty = None
    no_repeat_ngram: NoRepeatNgram = None

    def settings(self) -> dict[str, Any]:
        """The settings of `BeamConfig`, whose `early_stopping` is a boolean or never."""
        values = {"no": False, "yes": True}
        return {name: values.get(value, value) for name, value in super().settings().items()}


UNSET = BeamOptions()


def translate(
    run: str,
    /,
    *files: Path,
    prompt: TextList = None,
    beam: Annotated[BeamOptions, Parameter(name="*")] = UNSET,
    crop: bool = False,
    rows: int = 128,
    encoding: Encoding = "utf-8",
    weights: Weights = "trained",
    precision: Precision = "auto",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Translate texts line by line with beam search.

    Parameters
    ----------
    run
        A run directory, or its name in runs/: an encoder-decoder, or a decoder trained with task=translation.
    files
        Files with one source text per line; empty lines stay empty. Defaults to standard input.
    prompt
        A text to translate instead of files; may be repeated.
    crop
        Truncate sources that do not fit into the model's context instead of refusing them.
    rows
        Batch size in sources.
    """
    settings = beam.settings()
    BeamConfig.of(settings, where="translate")  # before anything takes time
    path = find_run(run)
    ready = open_model(path, device, weights, precision)
    _check_translates(path, ready)
    config = decoding_config(ready, BeamConfig, settings)
    tokenizer = tokenizer_of(ready, path)
    sources = _read_sources(files, prompt, reader_of(encoding, skip_invalid=False).encoding)
    label = f"translating {pluralize(len(sources), 'line')}"
    with bar(console(as_json=True), label) as done, locating_errors(sources.origins):
        special = sentinels(ready.config.task, tokenizer)
        translations = translate_texts(ready.model, tokenizer, sources, config, crop, rows, done, special)
    report_truncated([best for best, *_ in translations], f"--max-tokens {config.max_tokens}, or the context is full")
    if json:
        results = [
            {"source": source, "best": [vars(candidate) for candidate in candidates]}
            for source, candidates in zip(sources, translations, strict=True)
        ]
        header = {"run": str(path), "precision": ready.precision, "beam": config.to_dict()}
        print_json({**header, "translations": results})
    else:
        sys.stdout.writelines(_output_lines(translations, beam.best))


def report_truncated(translations: Sequence[Translation], reason: str) -> None:
    """Report truncated translations on stderr."""
    if truncated := sum(translation.finish in ("length", "context") for translation in translations):
        subject = (
            f"{truncated:,} of {len(translations):,} translations are"
            if len(translations) > 1
            else "the translation is"
        )
        print(f"{subject} truncated: {reason}", file=sys.stderr)


def _check_translates(run: Path, ready: Ready) -> None:
    """Refuse a run trained on another task. Span infilling also maps a source to a target, and imported models have no task."""
    if learned_sources(ready.config.task):
        return
    hint = "" if ready.model.decoder is None else f", for example from={run}"
    raise HeddleError(f"{run} was not trained to translate; train one with task=translation{hint}")


def _read_sources(files: Sequence[Path], prompts: list[str] | None, encoding: str) -> Items:
    """Read the texts to translate.

    Raises:
        HeddleError: prompts are combined with files or an encoding, a file cannot be read, or every text is empty.
    """
    if prompts is not None and files:
        raise HeddleError("give files or --prompt, not both")
    if prompts is not None and encoding != "utf-8":
        raise HeddleError("--encoding does not apply to --prompt: leave it out")
    lines_read: list[tuple[str, str]] = []
    for number, text in enumerate(prompts or (), start=1):
        lines_read.append((text, text_label(number, len(prompts or ()))))
    for file in () if prompts is not None else files or (Path(STDIN[1]),):
        is_stdin = str(file) in STDIN
        lines = input_lines(encoding) if is_stdin else text_lines(file, encoding)
        source = "standard input" if is_stdin else str(file)
        lines_read += [(line, f"{source}:{number}") for number, line in enumerate(lines, start=1)]
    if not any(text.strip() for text, _ in lines_read):
        raise HeddleError(EMPTY)
    return Items((Example({"source": text}, None, origin), {"source": text}) for text, origin in lines_read)


def _output_lines(translations: Sequence[tuple[Translation, ...]], best: int) -> Iterator[str]:
    """Output lines: one per source, or one per translation if `best` is above 1."""
    for number, candidates in enumerate(translations):
        for translation in candidates:
            text = " ".join(translation.text.splitlines())
            yield f"{text}\n" if best == 1 else f"{number}\t{translation.score:.4f}\t{text}\n"
