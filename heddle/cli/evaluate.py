"""`heddle eval`."""

from pathlib import Path

from heddle.cli.models import open_model
from heddle.cli.say import bar, console, document, estimate, find_run, table
from heddle.config.data import DataConfig
from heddle.config.saved import SavedConfig
from heddle.config.tasks import NextTokenConfig
from heddle.data.corpus import Corpus, Part
from heddle.data.encode import records_of
from heddle.data.examples import read_examples
from heddle.data.files import standard_input
from heddle.data.memory import part_of
from heddle.data.record_store import RecordStore, open_store
from heddle.data.records import Records
from heddle.data.sources import read_documents
from heddle.errors import HeddleError
from heddle.text.tokenizer import Tokenizer
from heddle.train.evaluate import evaluate as score
from heddle.train.material import TEXT
from heddle.train.session import layout_of
from heddle.train.task import Reading
from heddle.train.tasks import make_task
from heddle.weights.checkpoints import read_manifest


def evaluate(run: str, /, *files: str, context: int | None = None, device: str = "auto", json: bool = False) -> None:
    """Score text: loss, perplexity, bits per byte.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    files
        Files to score, of the kind that the run's task reads. Defaults to all that the run held out.
    context
        Tokens in each window; windows do not overlap. Defaults to the context that the model was trained with.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout.
    """
    path = find_run(run)
    ready = open_model(path, device)
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
    task = make_task(config.task or NextTokenConfig(), reading)
    with bar(console(as_json=True), "scoring") as done:
        result = score(model, task, progress=done)
    what = ", ".join(files) or f"held out by {path}"
    if json:
        document({"run": str(path), "text": what, "context": length, "precision": ready.precision, **result.to_dict()})
        return
    columns = ["text", task.config.counted, "loss", *(name.replace("_", " ") for name in result.metrics)]
    numbers = (
        f"{value:.4f}" if isinstance(value, float) else value for value in (result.loss, *result.metrics.values())
    )
    console().print(table(columns, [[what, result.tokens, *numbers]]))
    if not files and (note := _ended(path, result.tokens, task.config.counted)):
        console().print(note, markup=False)


def _held_out(run: Path) -> Part | Records:
    if not (run / "data").is_dir():
        raise HeddleError(f"{run} held nothing out; name the files to score: heddle eval {run} FILE")
    store = open_store(run / "data")
    store.verify("validation")
    return store.validation


def _read(files: tuple[str, ...], run: Path, config: SavedConfig, tokenizer: Tokenizer) -> Part | Records:
    """The files, as the run's task reads them."""
    task, data = config.task or NextTokenConfig(), config.data or DataConfig()
    records = task.fields != TEXT
    with standard_input(files, ".jsonl" if records else ".txt") as sources:
        if not records:
            return part_of(read_documents(sources, data.text), tokenizer)
        classes: tuple[str, ...] = ()
        if task.has_classes:
            if not (run / "data").is_dir():
                raise HeddleError(f"{run} has no data/ with the names of its classes")
            store = open_store(run / "data")
            classes = store.train.classes if isinstance(store, RecordStore) else ()
        examples = read_examples(sources, task.reads(data.columns()), data.columns(), task.labels)
        return records_of(examples, tokenizer, task.labels, classes, task.chat(config.model.chat))


def _ended(run: Path, tokens: int, counted: str) -> str | None:
    """The score at the end of training, if it was of a sample and so differs from this one."""
    ended = read_manifest(run).get("evaluation") if (run / "manifest.json").is_file() else None
    if not ended or ended["tokens"] == tokens:
        return None
    loss = estimate(ended["loss"], ended["standard_error"])
    return f"training ended with loss {loss} over an even sample of {ended['tokens']:,} of these {counted}; this is over all"
