"""`heddle eval`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from heddle.cli.benchmarks import evaluate_published
from heddle.cli.inputs import reader_of
from heddle.cli.models import open_model
from heddle.cli.output import bar, console, estimate, find_run, print_json, table
from heddle.cli.scored import Scored, held_out, read_files, task_of
from heddle.cli.translate import report_cuts
from heddle.config.decoding import BeamConfig, WeightKind, completed
from heddle.config.tasks import TranslationConfig
from heddle.data.corpus import Corpus
from heddle.data.records import Records
from heddle.data.sources.examples import Example
from heddle.errors import HeddleError
from heddle.generate.bleu import TranslationScore, metrics, score_translations
from heddle.generate.translate import translate
from heddle.model.transformer import Transformer
from heddle.runs.session import layout_of
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec
from heddle.text.tokenizer import Tokenizer
from heddle.train.evaluate import Evaluation
from heddle.train.evaluate import evaluate as score
from heddle.weights.checkpoints import read_manifest
from heddle.weights.files import refuse_unwritable, write_file

TOKENIZE = "13a"  # sacrebleu's default


def evaluate(
    run: str,
    /,
    *files: str,
    context: int | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    encoding: str | None = None,
    skip_invalid: bool = False,
    tasks: list[str] | None = None,
    limit: int | None = None,
    shots: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    output: Path | None = None,
    weights: WeightKind = "trained",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Score files: loss, and what else the run's task measures, such as bits per byte; with --beams, also BLEU and chrF.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    files
        Files to score, of the kind that the run's task reads. Defaults to all that the run held out.
    context
        Tokens in each window; windows do not overlap. Defaults to the context that the model was trained with.
    text_column
        Column of the text in tables. Defaults to the one that the run was trained on.
    pair_column
        Column of the second text of a pair in tables. Defaults to the one that the run was trained on.
    label_column
        Column of the label in tables. Defaults to the one that the run was trained on.
    encoding
        Encoding of the files, such as cp1252. [default: utf-8]
    skip_invalid
        Leave out what cannot be read, and say how much it is, instead of stopping at the first.
    tasks
        A task of lm-eval to evaluate a language model on, instead of files: a YAML file, or the name of a published task, which
        lm-eval downloads. Repeat it for several.
    limit
        With --tasks: evaluate only the first examples of each task.
    shots
        With --tasks: solved examples before each one, instead of what the task says.
    beams
        Translate the sources too, with so many beams (see heddle translate), and report BLEU and chrF with sacrebleu's signatures.
    length_penalty
        With --beams: as in heddle translate. [default: 1.0]
    tokenize
        With --beams: sacrebleu's tokenization for BLEU; none for texts that are tokenized already. [default: 13a]
    lowercase
        With --beams: ignore case.
    output
        With --beams: a new file for the translations, one per line.
    weights
        int8 or int4: round the weights, which takes less memory on a CPU, and less time with one text at once. See
        docs/serving.md for what it costs.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout.
    """
    beam = _search(beams, length_penalty, tokenize, lowercase, output)
    path = find_run(run)
    named = _named(files, text=text_column, pair=pair_column, label=label_column)
    if not files and (encoding is not None or skip_invalid):
        raise HeddleError("--encoding and --skip-invalid are about files to score: name one, or leave them out")
    if tasks:
        if files or context is not None or beams is not None:
            raise HeddleError("--tasks names what to evaluate on: leave out files, --context and --beams")
        evaluate_published(path, tasks, limit, shots, device, json, weights)
        return
    if limit is not None or shots is not None:
        raise HeddleError("--limit and --shots apply to --tasks only")
    ready = open_model(path, device, weights)
    model, tokenizer, config = ready.model, ready.tokenizer, ready.config
    length = _length(context, model.config.context)
    reader = reader_of(encoding or "utf-8", skip_invalid)
    scored = read_files(files, path, config, tokenizer, named, reader) if files else held_out(path)
    corpus, layout = Corpus(validation=scored.part), layout_of(config)
    task = make_task(
        task_of(config), DataSpec(corpus, config.model, context=length, tokenizer=tokenizer, layout=layout)
    )
    if beam is not None and (tokenizer is None or not isinstance(task.config, TranslationConfig)):
        raise HeddleError(f"{path} was not trained to translate: leave out --beams")
    with bar(console(as_json=True), "scoring") as done:
        result = score(model, task, progress=done)
    what, translated = ", ".join(files) or f"held out by {path}", None
    if beam is not None and tokenizer is not None:
        translated = _translated(model, tokenizer, scored, beam, tokenize or TOKENIZE, lowercase, output)
    if json:
        about = {"run": str(path), "text": what, "context": length, "precision": ready.precision}
        more = {} if translated is None else {"translations": vars(translated)}
        print_json({**about, **result.to_dict(), **scored.to_dict(), **more})
        return
    _show_score(result, what, task.config.counted)
    for line in (*([result.note] if result.note else []), *scored.lines()):
        console().print(line, markup=False)
    if translated is not None:
        _show(translated)
    if not files and (note := _ended(path, result.tokens, task.config.counted)):
        console().print(note, markup=False)


def _search(
    beams: int | None, length_penalty: float | None, tokenize: str | None, lowercase: bool, output: Path | None
) -> BeamConfig | None:
    """How to translate, or None: to score only.

    Raises:
        HeddleError: options are about translations, but nothing is translated; the output exists; or an option is impossible.
    """
    said = {"length-penalty": length_penalty is not None, "tokenize": tokenize is not None, "lowercase": lowercase}
    unused = next((name for name, given in {**said, "output": output is not None}.items() if given), None)
    if beams is None and unused is not None:
        raise HeddleError(f"--{unused} is about translations: add --beams 5")
    if output is not None:
        refuse_unwritable(output)
    if beams is None:
        return None
    metrics(tokenize or TOKENIZE, lowercase)  # raises before anything takes time
    penalty = {} if length_penalty is None else {"length_penalty": length_penalty}
    return BeamConfig.of({"beams": beams, **penalty}, where="eval")


def _named(files: tuple[str, ...], **said: str | None) -> dict[str, str]:
    """The columns that options name, by field.

    Raises:
        HeddleError: there is one, but no file.
    """
    named = {field: column for field, column in said.items() if column is not None}
    if named and not files:
        option = f"--{next(iter(named))}-column"
        raise HeddleError(f"{option} names a column of files to score, but no file is named: leave it out, or name one")
    return named


def _length(asked: int | None, context: int) -> int:
    """The length of rows.

    Raises:
        HeddleError: the model was trained with a shorter one.
    """
    length = context if asked is None else asked
    if length < 1:
        raise HeddleError(f"context = {length}: must be at least 1")
    if length > context:
        raise HeddleError(f"context = {length} is more than the {context} this model was trained with")
    return length


def _texts(records: Records, pairs: Sequence[Example] | None, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Sources and references: as the files have them; of what was held out, whose text is not kept, its tokens decoded."""
    names = TranslationConfig.fields
    if pairs is not None:
        sources, references = ([str(each.texts[name]) for each in pairs if not each.empty] for name in names)
        return sources, references
    columns = [records.columns[name] for name in names]
    unknown = getattr(tokenizer, "unknown", None)
    if some := sum(unknown in columns[1][number] for number in range(len(records)) if unknown is not None):
        print(
            f"{some:,} of {len(records):,} references have words that the tokenizer does not know, and are compared with its "
            "unknown token in their place: name the file to compare with its text",
            file=sys.stderr,
        )
    sources, references = ([tokenizer.decode(ids[n].tolist()) for n in range(len(ids))] for ids in columns)
    return sources, references


def _translated(
    model: Transformer,
    tokenizer: Tokenizer,
    scored: Scored,
    config: BeamConfig,
    tokenize: str,
    lowercase: bool,
    output: Path | None,
) -> TranslationScore:
    """Translate, and score the translations. They may be as long as the model's context, whatever a token is."""
    assert isinstance(scored.part, Records)
    sources, references = _texts(scored.part, scored.examples, tokenizer)
    said = {name: getattr(config, name) for name in config.model_fields_set} | {"max_tokens": model.config.context}
    config = completed(BeamConfig, said, model.config.decoding, "eval")
    with bar(console(as_json=True), "translating") as done:
        found = translate(model, tokenizer, sources, config, crop=True, progress=done)
    report_cuts([best for best, *_ in found], "the context is full")
    texts = [" ".join(best.text.splitlines()) for best, *_ in found]
    if output is not None:
        write_file(output, "".join(f"{text}\n" for text in texts).encode())
    return score_translations(texts, references, tokenize, lowercase)


def _show_score(result: Evaluation, what: str, counted: str) -> None:
    """Print a score as a table."""
    columns = ["text", counted, "loss", *(name.replace("_", " ") for name in result.metrics)]
    numbers = [f"{each:.4f}" if isinstance(each, float) else each for each in (result.loss, *result.metrics.values())]
    console().print(table(columns, [[what, result.tokens, *numbers]]))


def _show(translated: TranslationScore) -> None:
    """Print scores of translations with their signatures."""
    out = console()
    out.print(
        f"{translated.texts:,} translations: BLEU {translated.bleu:.2f}, chrF {translated.chrf:.2f}", markup=False
    )
    out.print(f"BLEU {translated.bleu_signature}\nchrF {translated.chrf_signature}", markup=False)


def _ended(run: Path, tokens: int, counted: str) -> str | None:
    """The score at the end of training, if it was of a sample and so differs from this one."""
    ended = read_manifest(run).get("evaluation") if (run / "manifest.json").is_file() else None
    if not ended or ended["tokens"] == tokens:
        return None
    loss = estimate(ended["loss"], ended["standard_error"])
    return f"training ended with loss {loss} over an even sample of {ended['tokens']:,} of these {counted}; this is over all"
