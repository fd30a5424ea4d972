"""`heddle eval`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from heddle.cli.models import open_model, tokenizer_of
from heddle.cli.options import ENCODING, Device, Json, PairColumn, Precision, Run, SkipInvalid, TextColumn, Weights
from heddle.cli.output import bar, console, find_run, print_json, table
from heddle.cli.translate import report_truncated
from heddle.config.decoding import BeamConfig, completed
from heddle.config.tasks import TranslationConfig
from heddle.data.corpus import Corpus
from heddle.data.records import Records
from heddle.data.sources.examples import Example
from heddle.display import estimate
from heddle.errors import HeddleError
from heddle.generate.bleu import TranslationScore, metrics, score_translations
from heddle.generate.translate import translate
from heddle.model.transformer import Transformer
from heddle.predict.evaluation_data import EvaluationData, held_out, read_files, task_of
from heddle.predict.inputs import reader_of
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec
from heddle.text.tokenizer import Tokenizer
from heddle.train.evaluate import Evaluation
from heddle.train.evaluate import evaluate as score_model
from heddle.weights.checkpoints import read_manifest
from heddle.weights.files import refuse_unwritable, write_file

TOKENIZE = "13a"  # sacrebleu's default


def evaluate(
    run: Run,
    /,
    *files: str,
    context: int | None = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: str | None = None,
    encoding: Annotated[str | None, Parameter(help=f"{ENCODING} [default: utf-8]")] = None,
    skip_invalid: SkipInvalid = False,
    tasks: list[str] | None = None,
    limit: int | None = None,
    shots: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    output: Path | None = None,
    weights: Weights = "trained",
    precision: Precision = "auto",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a model: loss and task metrics such as bits per byte; with --beams, also BLEU and chrF.

    Parameters
    ----------
    files
        Files in the format of the run's task. Defaults to the run's held-out data.
    context
        Tokens per window; windows do not overlap. Defaults to the model's context.
    label_column
        Label column of tables. Defaults to the column that the run was trained on.
    tasks
        An lm-eval task for a language model, instead of files: a YAML file, or the name of a published task, which lm-eval
        downloads. May be repeated.
    limit
        With --tasks: evaluate only this many examples per task.
    shots
        With --tasks: few-shot examples, instead of the task's default.
    beams
        Also translate the sources with this beam width, and report BLEU and chrF with sacrebleu's signatures.
    length_penalty
        With --beams: as in heddle translate. [default: 1.0]
    tokenize
        With --beams: sacrebleu's tokenizer for BLEU; none for pre-tokenized texts. [default: 13a]
    lowercase
        With --beams: ignore case.
    output
        With --beams: write the translations to this new file, one per line.
    """
    beam_config = _beam_config(beams, length_penalty, tokenize, lowercase, output)
    path = find_run(run)
    columns = _column_overrides(files, text=text_column, pair=pair_column, label=label_column)
    if not files and (encoding is not None or skip_invalid):
        raise HeddleError("--encoding and --skip-invalid need a file to score")
    if tasks:
        if files or context is not None or beams is not None:
            raise HeddleError("--tasks cannot be combined with files, --context or --beams")
        _evaluate_published(path, tasks, limit, shots, device, weights, precision, json)
        return
    if limit is not None or shots is not None:
        raise HeddleError("--limit and --shots need --tasks")
    ready = open_model(path, device, weights, precision)
    model, tokenizer, config = ready.model, ready.tokenizer, ready.config
    length, reader = _check_context(context, model.config.context), reader_of(encoding or "utf-8", skip_invalid)
    data = read_files(files, path, config, tokenizer, columns, reader) if files else held_out(path)
    spec = DataSpec.of(config.data, config.train, Corpus(validation=data.part), config.model, tokenizer, context=length)
    task = make_task(task_of(config), spec)
    if beam_config is not None and (tokenizer is None or not isinstance(task.config, TranslationConfig)):
        raise HeddleError(f"{path} was not trained to translate: leave out --beams")
    with bar(console(as_json=True), "scoring") as done:
        result = score_model(model, task, progress=done)
    label, translations = ", ".join(files) or f"held out by {path}", None
    if beam_config is not None and tokenizer is not None:
        translations = _translate(model, tokenizer, data, beam_config, tokenize or TOKENIZE, lowercase, output)
    if json:
        header = {"run": str(path), "text": label, "context": length, "precision": ready.precision}
        extra = {} if translations is None else {"translations": vars(translations)}
        print_json({**header, **result.to_dict(), **data.to_dict(), **extra})
        return
    _print_score(result, label, task.config.counted)
    for line in (*([result.note] if result.note else []), *data.lines()):
        console().print(line)
    if translations is not None:
        _print_translation_score(translations)
    if not files and (note := _training_score_note(path, result.tokens, task.config.counted)):
        console().print(note)


def _evaluate_published(
    run: Path,
    tasks: Sequence[str],
    limit: int | None,
    shots: int | None,
    device: str,
    weights: Weights,
    precision: Precision,
    json: bool,
) -> None:
    """Evaluate a run on tasks of lm-eval, and print their metrics."""
    for name, value, minimum in (("limit", limit, 1), ("shots", shots, 0)):
        if value is not None and value < minimum:
            raise HeddleError(f"{name} = {value}: must be at least {minimum}")
    try:
        import lm_eval as _  # noqa: F401
    except ImportError:
        raise HeddleError("--tasks needs lm-eval: pip install 'heddle-lm[eval]'") from None
    from heddle.predict.lm_eval import evaluate_tasks

    ready = open_model(run, device, weights, precision)
    results = evaluate_tasks(ready.model, tokenizer_of(ready, run), tasks, limit, shots)
    if json:
        print_json({"run": str(run), "precision": ready.precision, "tasks": results})
        return
    rows: list[list[Any]] = []
    for task, values in results.items():
        for name, value in values.items():
            if name != "examples" and not name.endswith("_stderr"):
                error = values.get(f"{name}_stderr")
                rows.append([task, values["examples"], name, f"{value:.4f}", "-" if error is None else f"{error:.4f}"])
    console().print(table(["task", "examples", "metric", "value", "standard error"], rows))


def _beam_config(
    beams: int | None, length_penalty: float | None, tokenize: str | None, lowercase: bool, output: Path | None
) -> BeamConfig | None:
    """The beam search config, or None without --beams.

    Raises:
        HeddleError: a translation option is given without --beams, the output exists, or an option is invalid.
    """
    options = {"length-penalty": length_penalty is not None, "tokenize": tokenize is not None, "lowercase": lowercase}
    unused = next((name for name, is_set in {**options, "output": output is not None}.items() if is_set), None)
    if beams is None and unused is not None:
        raise HeddleError(f"--{unused} needs --beams, such as --beams 5")
    if output is not None:
        refuse_unwritable(output)
    if beams is None:
        return None
    metrics(tokenize or TOKENIZE, lowercase)  # raises before anything takes time
    penalty = {} if length_penalty is None else {"length_penalty": length_penalty}
    return BeamConfig.of({"beams": beams, **penalty}, where="eval")


def _column_overrides(files: tuple[str, ...], **options: str | None) -> dict[str, str]:
    """The columns given by options, by field."""
    columns = {field: column for field, column in options.items() if column is not None}
    if columns and not files:
        option = f"--{next(iter(columns))}-column"
        raise HeddleError(f"{option} needs a file to score")
    return columns


def _check_context(requested: int | None, context: int) -> int:
    """The context to evaluate with, at most the model's."""
    length = context if requested is None else requested
    if length < 1:
        raise HeddleError(f"context = {length}: must be at least 1")
    if length > context:
        raise HeddleError(f"context = {length} is more than the model's {context}")
    return length


def _sources_and_references(
    records: Records, pairs: Sequence[Example] | None, tokenizer: Tokenizer
) -> tuple[list[str], list[str]]:
    """Sources and references: from the files, or decoded from held-out tokens, since runs do not store their text."""
    names = TranslationConfig.fields
    if pairs is not None:
        sources, references = ([str(pair.texts[name]) for pair in pairs if not pair.empty] for name in names)
        return sources, references
    columns = [records.columns[name] for name in names]
    unknown = getattr(tokenizer, "unknown", None)
    if unknown_count := sum(unknown in columns[1][number] for number in range(len(records)) if unknown is not None):
        print(
            f"{unknown_count:,} of {len(records):,} references have words unknown to the tokenizer, "
            "which are scored as its unknown token; give the file to score against its text",
            file=sys.stderr,
        )
    sources, references = ([tokenizer.decode(ids[n].tolist()) for n in range(len(ids))] for ids in columns)
    return sources, references


def _translate(
    model: Transformer,
    tokenizer: Tokenizer,
    evaluation_data: EvaluationData,
    config: BeamConfig,
    tokenize: str,
    lowercase: bool,
    output: Path | None,
) -> TranslationScore:
    """Translate the sources and score the translations, which may be as long as the model's context."""
    assert isinstance(evaluation_data.part, Records)
    sources, references = _sources_and_references(evaluation_data.part, evaluation_data.examples, tokenizer)
    settings = {name: getattr(config, name) for name in config.model_fields_set} | {"max_tokens": model.config.context}
    config = completed(BeamConfig, settings, model.config.decoding, "eval")
    with bar(console(as_json=True), "translating") as done:
        candidates = translate(model, tokenizer, sources, config, crop=True, progress=done)
    report_truncated([best for best, *_ in candidates], "the context is full")
    texts = [" ".join(best.text.splitlines()) for best, *_ in candidates]
    if output is not None:
        write_file(output, "".join(f"{text}\n" for text in texts).encode())
    return score_translations(texts, references, tokenize, lowercase)


def _print_score(result: Evaluation, label: str, counted: str) -> None:
    """Print metrics as a table."""
    columns = ["text", counted, "loss", *(name.replace("_", " ") for name in result.metrics)]
    numbers = [
        f"{value:.4f}" if isinstance(value, float) else value for value in (result.loss, *result.metrics.values())
    ]
    console().print(table(columns, [[label, result.tokens, *numbers]]))


def _print_translation_score(score: TranslationScore) -> None:
    """Print translation scores with their signatures."""
    out = console()
    out.print(f"{score.texts:,} translations: BLEU {score.bleu:.2f}, chrF {score.chrf:.2f}")
    out.print(f"BLEU {score.bleu_signature}\nchrF {score.chrf_signature}")


def _training_score_note(run: Path, tokens: int, counted: str) -> str | None:
    """A note on the score at the end of training, if that covered only a sample."""
    final = read_manifest(run).get("evaluation") if (run / "manifest.json").is_file() else None
    if not final or final["tokens"] == tokens:
        return None
    loss = estimate(final["loss"], final["standard_error"])
    return f"the loss at the end of training, {loss}, was over an even sample of {final['tokens']:,} of these {counted}"
