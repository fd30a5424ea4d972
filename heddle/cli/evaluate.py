"""`heddle eval`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.cli.benchmarks import evaluate_published
from heddle.cli.models import open_model
from heddle.cli.say import bar, console, document, estimate, find_run, table
from heddle.config.data import DataConfig
from heddle.config.decoding import BeamConfig, WeightKind
from heddle.config.model import ClassifierHeadConfig
from heddle.config.saved import SavedConfig
from heddle.config.tasks import (
    ClassificationConfig,
    MaskedConfig,
    NextTokenConfig,
    RegressionConfig,
    TaskConfig,
    TokenClassificationConfig,
    TranslationConfig,
)
from heddle.data.corpus import Corpus, Part
from heddle.data.encode import records_of
from heddle.data.examples import Example, read_examples
from heddle.data.files import standard_input
from heddle.data.memory import part_of
from heddle.data.record_store import open_store
from heddle.data.records import Records
from heddle.data.sources import read_documents
from heddle.errors import HeddleError
from heddle.generate.bleu import TranslationScore, score_translations
from heddle.generate.translate import translate
from heddle.model.transformer import Transformer
from heddle.predict.classify import class_names
from heddle.text.tokenizer import Tokenizer
from heddle.train.evaluate import evaluate as score
from heddle.train.labelled import listed_names
from heddle.train.material import TEXT
from heddle.train.session import layout_of
from heddle.train.task import Reading
from heddle.train.tasks import make_task
from heddle.weights.checkpoints import read_manifest
from heddle.weights.files import refuse_unwritable, write_file


def evaluate(
    run: str,
    /,
    *files: str,
    context: int | None = None,
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
    _check_translating(beams, length_penalty, tokenize, lowercase, output)
    path = find_run(run)
    if tasks:
        if files or context is not None or beams is not None:
            raise HeddleError("--tasks names what to evaluate on: leave out files, --context and --beams")
        evaluate_published(path, tasks, limit, shots, device, json, weights)
        return
    if limit is not None or shots is not None:
        raise HeddleError("--limit and --shots apply to --tasks only")
    ready = open_model(path, device, weights)
    model, tokenizer, config = ready.model, ready.tokenizer, ready.config
    length = config.model.context if context is None else context
    if length < 1:
        raise HeddleError(f"context = {length}: must be at least 1")
    if length > config.model.context:
        raise HeddleError(f"context = {length} is more than the {config.model.context} this model was trained with")
    if files and tokenizer is None:
        raise HeddleError(f"{path} has no tokenizer.json to tokenize the text with")
    part = _read(files, path, config, tokenizer) if tokenizer and files else _held_out(path)
    corpus, layout = Corpus(validation=part), layout_of(config)
    reading = Reading(corpus, config.model, context=length, tokenizer=tokenizer, layout=layout)
    task = make_task(_task_of(config), reading)
    if beams is not None and (tokenizer is None or not isinstance(task.config, TranslationConfig)):
        raise HeddleError(f"{path} was not trained to translate: leave out --beams")
    with bar(console(as_json=True), "scoring") as done:
        result = score(model, task, progress=done)
    what, translated = ", ".join(files) or f"held out by {path}", None
    if beams is not None:
        beam = {"beams": beams, **({} if length_penalty is None else {"length_penalty": length_penalty})}
        translated = _translated(model, tokenizer, part, beam, tokenize or "13a", lowercase, output)
    if json:
        found = {"run": str(path), "text": what, "context": length, "precision": ready.precision, **result.to_dict()}
        document(found if translated is None else {**found, "translations": vars(translated)})
        return
    columns = ["text", task.config.counted, "loss", *(name.replace("_", " ") for name in result.metrics)]
    numbers = (
        f"{value:.4f}" if isinstance(value, float) else value for value in (result.loss, *result.metrics.values())
    )
    console().print(table(columns, [[what, result.tokens, *numbers]]))
    if translated is not None:
        _show(translated)
    if not files and (note := _ended(path, result.tokens, task.config.counted)):
        console().print(note, markup=False)


def _check_translating(
    beams: int | None, length_penalty: float | None, tokenize: str | None, lowercase: bool, output: Path | None
) -> None:
    """Refuse options about translations where nothing is translated, and an output that is there already."""
    said = {"length-penalty": length_penalty is not None, "tokenize": tokenize is not None, "lowercase": lowercase}
    unused = next((name for name, given in {**said, "output": output is not None}.items() if given), None)
    if beams is None and unused is not None:
        raise HeddleError(f"--{unused} is about translations: add --beams 5")
    if output is not None:
        refuse_unwritable(output)


def _translated(
    model: Transformer,
    tokenizer: Tokenizer | None,
    records: Part | Records,
    beam: dict[str, Any],
    tokenize: str,
    lowercase: bool,
    output: Path | None,
) -> TranslationScore:
    """Translate the sources of records, and score the translations. Texts are what the model reads: their tokens, decoded."""
    assert tokenizer is not None
    assert isinstance(records, Records)
    config = BeamConfig.of(beam, where="eval")
    columns = (records.columns[name] for name in TranslationConfig.fields)
    sources, references = ([tokenizer.decode(ids[n].tolist()) for n in range(len(ids))] for ids in columns)
    with bar(console(as_json=True), "translating") as done:
        found = translate(model, tokenizer, sources, config, crop=True, progress=done)
    texts = [" ".join(best.text.splitlines()) for best, *_ in found]
    if output is not None:
        write_file(output, "".join(f"{text}\n" for text in texts).encode())
    return score_translations(texts, references, tokenize, lowercase)


def _show(translated: TranslationScore) -> None:
    """Print scores of translations with their signatures."""
    out = console()
    out.print(
        f"{translated.texts:,} translations: BLEU {translated.bleu:.2f}, chrF {translated.chrf:.2f}", markup=False
    )
    out.print(f"BLEU {translated.bleu_signature}\nchrF {translated.chrf_signature}", markup=False)


def _held_out(run: Path) -> Part | Records:
    if not (run / "data").is_dir():
        raise HeddleError(f"{run} held nothing out; name the files to score: heddle eval {run} FILE")
    store = open_store(run / "data")
    store.verify("validation")
    return store.validation


def _read(files: tuple[str, ...], run: Path, config: SavedConfig, tokenizer: Tokenizer) -> Part | Records:
    """The files, as the run's task reads them."""
    task, data = _task_of(config), config.data or DataConfig()
    records = task.fields != TEXT
    with standard_input(files, ".jsonl" if records else ".txt") as sources:
        if not records:
            return part_of(read_documents(sources, data.text), tokenizer)
        examples = list(read_examples(sources, task.reads(data.columns()), data.columns(), task.labels))
        classes = class_names(config.model) if task.has_classes else ()
        if classes:
            _check_labels(examples, classes, run)
        return records_of(examples, tokenizer, task.labels, classes, task.chat(config.model.chat))


def _check_labels(examples: Sequence[Example], classes: tuple[str, ...], run: Path) -> None:
    """Refuse labels that a run does not know, such as those of another task."""
    first: dict[str, str] = {}
    for example in examples:
        for name in example.label if isinstance(example.label, tuple) else (str(example.label),):
            first.setdefault(name, example.origin)
    unknown = tuple(name for name in first if name not in classes)
    if unknown:
        raise HeddleError(
            f"{first[unknown[0]]}: {run} does not know the label{'s' if len(unknown) > 1 else ''} {listed_names(unknown)}; "
            f"it has learned {listed_names(classes)}"
        )


def _task_of(config: SavedConfig) -> TaskConfig:
    """The task of a run; of an imported model, the one that its head is for."""
    head = config.model.head
    if config.task is not None:
        return config.task
    if isinstance(head, ClassifierHeadConfig):
        if head.pooling == "none":
            return TokenClassificationConfig()
        return RegressionConfig() if head.classes == 1 else ClassificationConfig()
    return MaskedConfig() if tuple(config.model.stacks()) == ("encoder",) else NextTokenConfig()


def _ended(run: Path, tokens: int, counted: str) -> str | None:
    """The score at the end of training, if it was of a sample and so differs from this one."""
    ended = read_manifest(run).get("evaluation") if (run / "manifest.json").is_file() else None
    if not ended or ended["tokens"] == tokens:
        return None
    loss = estimate(ended["loss"], ended["standard_error"])
    return f"training ended with loss {loss} over an even sample of {ended['tokens']:,} of these {counted}; this is over all"
