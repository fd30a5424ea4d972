"""`heddle eval`."""

from pathlib import Path

from heddle.cli.models import open_model
from heddle.cli.say import bar, console, document, estimate, find_run, table
from heddle.config.tasks import NextTokenConfig
from heddle.data.sources import read_documents
from heddle.data.store import Corpus, Part, TokenStore, part_of
from heddle.errors import HeddleError
from heddle.train.evaluate import evaluate as score
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
        Files to score. Defaults to all the text that the run held out.
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
    part = part_of(read_documents(files), tokenizer) if tokenizer and files else _held_out(path)
    corpus, layout = Corpus(validation=part), layout_of(config)
    reading = Reading(corpus, config.model, context=length, tokenizer=tokenizer, layout=layout)
    task = make_task(config.task or NextTokenConfig(), reading)
    with bar(console(as_json=True), "scoring") as done:
        result = score(model, task, progress=done)
    what = ", ".join(files) or f"held out by {path}"
    if json:
        document({"run": str(path), "text": what, "context": length, "precision": ready.precision, **result.to_dict()})
        return
    columns = ["text", "tokens", "loss", *(name.replace("_", " ") for name in result.metrics)]
    numbers = (
        f"{value:.4f}" if isinstance(value, float) else value for value in (result.loss, *result.metrics.values())
    )
    console().print(table(columns, [[what, result.tokens, *numbers]]))
    if not files and (note := _ended(path, result.tokens)):
        console().print(note, markup=False)


def _held_out(run: Path) -> Part:
    if not (run / "data").is_dir():
        raise HeddleError(f"{run} held nothing out; name the files to score: heddle eval {run} FILE")
    store = TokenStore.open(run / "data")
    store.verify("validation")
    return store.validation


def _ended(run: Path, tokens: int) -> str | None:
    """The score at the end of training, if it was of a sample and so differs from this one."""
    ended = read_manifest(run).get("evaluation") if (run / "manifest.json").is_file() else None
    if not ended or ended["tokens"] == tokens:
        return None
    loss = estimate(ended["loss"], ended["standard_error"])
    return (
        f"training ended with loss {loss} over an even sample of {ended['tokens']:,} of these tokens; this is over all"
    )
