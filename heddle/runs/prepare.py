"""From settings to a run directory for a `Trainer`: resolve, tokens, plan, write."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heddle.checks import checked
from heddle.config.data import DataConfig
from heddle.config.model import LanguageHeadConfig
from heddle.config.run import RunConfig
from heddle.config.saved import SavedConfig, TakenVectors
from heddle.convert.word_vectors import VECTORS, find_rows, read_vectors, save_rows
from heddle.data.raw import RawDataset, Tell, open_dataset
from heddle.errors import HeddleError, pluralize
from heddle.runs.layout import check_division, check_layout
from heddle.runs.plan import Plan, plan
from heddle.runs.resolve import Resolved, resolve
from heddle.runs.start import copy_weights
from heddle.runs.token_cache import DATA, Tokens, cache_key, link, lookup, make_tokens
from heddle.runs.tokenizers import train_on
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.train.rates import cards
from heddle.train.sizes import batch_size, has_rows
from heddle.weights.checkpoints import CONFIG, TOKENIZER
from heddle.weights.files import being_written, remove_leftovers, write_directory


@checked()
def prepare(
    config: RunConfig,
    run: str | Path,
    tell: Tell = lambda line: None,
    texts_of: Sequence[str | Path] = (),
    ranks: int = 1,
) -> Plan:
    """Make the directory of a new run, atomically, and return its plan.

    Args:
        config: the user's settings.
        run: the directory, which must not exist.
        tell: called with one line per phase.
        texts_of: runs whose tokens to take, the first that has them from the same sources, settings and tokenizer; if there is
            none, the text is read and tokenised.
        ranks: how many processes will train it, each on a card of its own.

    Raises:
        HeddleError: the text cannot be read, the run exists, `data.store` has other tokens, or the settings cannot work.
    """
    run = new_directory(Path(run))
    resolved = resolve(config)
    check_ranks(resolved, ranks)
    for note in resolved.notes:
        tell(note)
    with open_dataset(resolved.config.data, resolved.config.task, stdin_read=bool(texts_of)) as dataset:
        tell(f"reading {name_sources(resolved.config.data)}")
        key = cache_key(resolved, dataset)
        cached = lookup(resolved.config.data, key, [*map(Path, texts_of)], tell)
        read_sources(resolved, dataset, cached, tell)
        with write_directory(run) as directory:
            tokenizer = make_tokenizer(resolved, dataset, cached, directory, tell)
            vectors = take_rows(resolved, tokenizer, directory, tell)
            if cached is not None:
                store = link(cached, directory / DATA)
            else:
                store = make_tokens(resolved.config.data, dataset, key, directory, tokenizer, tell)
            tell("measuring this machine")
            planned = plan(resolved, store, tokenizer, vectors, ranks)
            check_division(config.parallel, planned.model, planned.train)  # which has its depth now
            return write_run(resolved, planned, tokenizer, directory, tell)


def check_ranks(resolved: Resolved, ranks: int) -> None:
    """Refuse a mesh that these processes cannot be, and a step or layers that they cannot share, before the text is read.

    Raises:
        HeddleError: the mesh has another size, or the rows of a step or a layer cannot be divided among the processes.
    """
    config, device, model = resolved.config, resolved.device.type, resolved.smallest
    rows = batch_size(config, model.context, device, cards(device, ranks)) if has_rows(config) else None
    check_layout(config.parallel, model, config.train, config.train.compile == "on", ranks, rows, config.task)
    if resolved.has_depth:
        check_division(config.parallel, model, config.train)


def new_directory(run: Path) -> Path:
    """The directory of a new run, beside which nothing is left of one that was killed.

    Raises:
        HeddleError: it exists, or another process prepares it.
    """
    if run.exists():
        raise HeddleError(
            f"{run} already exists: continue it with `heddle train --resume {run}`, or choose another --name"
        )
    if being_written(run):
        raise HeddleError(f"{run} is being prepared by another process; choose another --name")
    if run.parent.is_dir():
        remove_leftovers(run.parent)
    return run


def name_sources(data: DataConfig) -> str:
    """The sources, in words."""
    sources = (*data.sources, *data.validation_sources)
    return ", ".join(sources) if data.sources else "the Python standard library's sources on this machine"


def read_sources(resolved: Resolved, dataset: RawDataset, cached: Tokens | None, tell: Tell) -> None:
    """Read everything once, so that a damaged file is refused before a tokenizer or a model is trained."""
    if cached is None:
        tell(dataset.read(tell))
    if (vectors := resolved.config.train.vectors) is not None:
        tell(f"checking {vectors}")
        for _ in read_vectors(vectors, tell):
            pass


def make_tokenizer(
    resolved: Resolved, dataset: RawDataset, cached: Tokens | None, directory: Path, tell: Tell
) -> Tokenizer:
    """The run's tokenizer, also written into its directory: one that exists, that of cached tokens, or a new one."""
    if resolved.tokenizer is not None:
        tokenizer = resolved.tokenizer
    elif cached is not None:
        tokenizer = load_tokenizer(cached.tokenizer)
    else:
        tokenizer = train_on(dataset, resolved.config, tell)
    tokenizer.save(directory / TOKENIZER)
    return tokenizer


def take_rows(resolved: Resolved, tokenizer: Tokenizer, directory: Path, tell: Tell) -> TakenVectors | None:
    """Store a file's vectors for a run's tokens in the run, so that the run never needs the file again.

    Raises:
        HeddleError: the file cannot be read, or none of its words is a token.
    """
    vectors = resolved.config.train.vectors
    if vectors is None:
        return None
    rows = find_rows(tokenizer, vectors, tell)
    known = rows.coverage
    if not known.matched:
        raise HeddleError(
            f"{vectors}: none of its words is one of the {known.vocabulary:,} tokens; try tokenizer=words"
        )
    tell(f"{vectors} knows {known.matched:,} of {pluralize(known.vocabulary, 'token')} ({known.share:.0%})")
    head = resolved.smallest.head
    if isinstance(head, LanguageHeadConfig) and head.tied:
        tell("the head is tied, so it scores with these vectors too; set head.tied=false for separate weights")
    checksum = save_rows(directory / VECTORS, rows)
    return TakenVectors(matched=known.matched, vocabulary=known.vocabulary, unused=known.unused, sha256=checksum)


def write_run(resolved: Resolved, planned: Plan, tokenizer: Tokenizer, directory: Path, tell: Tell) -> Plan:
    """Write the weights to start from and the config of a planned run, and return its plan."""
    for line in planned.remarks:
        tell(line)
    config, start = resolved.config, resolved.start
    if start is not None:
        tell(f"taking the weights of {start.run}")
        source, head_is_new = copy_weights(start, planned.model, tokenizer.vocab_size, directory)
        planned = replace(planned, chosen=planned.chosen.override({"start": source.to_dict()}))
        if head_is_new:
            tell(f"the head is new: {planned.model.head.kind}")
    parts = {"data": config.data, "task": config.task, "train": planned.train, "chosen": planned.chosen}
    prompts = config.task.prompts(config.data.layout, planned.model.stacks())
    saved = SavedConfig(parallel=config.parallel, model=planned.model.override({"prompts": prompts}), **parts)
    (directory / CONFIG).write_text(saved.to_json(), encoding="utf-8")
    return planned
