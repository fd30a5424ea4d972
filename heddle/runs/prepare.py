"""From text to a run directory for a `Trainer`: tokenizer, token store, plan, and checks before anything is trained."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from heddle.checks import checked
from heddle.config.base import models_in
from heddle.config.data import DataConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, TransformerConfig
from heddle.config.presets import preset
from heddle.config.run import RunConfig
from heddle.config.saved import Chosen, SavedConfig, TakenVectors
from heddle.config.tasks import ChatConfig, TaskConfig
from heddle.convert.heads import with_family_head
from heddle.convert.word_vectors import VECTORS, find_rows, read_vectors, save_rows, vector_width
from heddle.data.raw import RawDataset, Tell, open_dataset
from heddle.data.record_store import Store
from heddle.errors import HeddleError, pluralize
from heddle.model.build import build
from heddle.model.device import pick_device
from heddle.model.groups import check_groups
from heddle.model.lora import adapt
from heddle.runs.plan import CONTEXT, DEPTHS, Plan, plan
from heddle.runs.token_cache import (
    DATA,
    CacheKey,
    Tokens,
    cache_key,
    check_tokenizer,
    link,
    lookup,
    make_tokens,
    read_tokenizer,
    start_tokenizer,
)
from heddle.tasks.table import make_task
from heddle.tasks.task import MULTIPLE, DataSpec
from heddle.text.base import Kind
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from heddle.weights.checkpoints import TOKENIZER
from heddle.weights.files import being_written, remove_leftovers, write_directory
from heddle.weights.run import load, read_config
from heddle.weights.start import START, cut_tensors, grown, is_head, load_start, save_start

TRAINABLE = get_args(Kind)
CUTTING = {"start", "context", "depth", "dropout"}  # settings of [model] that a run to start from can have
FAMILIES = {
    ("encoder",): "an encoder",
    ("decoder",): "a decoder",
    ("encoder", "decoder"): "an encoder-decoder",
}


@checked()
def prepare(
    config: RunConfig, run: str | Path, tell: Tell = lambda line: None, texts_of: Sequence[str | Path] = ()
) -> Plan:
    """Make the directory of a new run, completely or not at all, and return its plan.

    Args:
        config: the user's settings.
        run: the directory, which must not exist.
        tell: called with one line per phase.
        texts_of: runs whose tokens to take, the first that has them from the same sources, settings and tokenizer; if there is
            none, the text is read and tokenised.

    Raises:
        HeddleError: the text cannot be read, the run exists, `data.store` has other tokens, or the settings cannot work.
    """
    run = Path(run)
    if run.exists():
        raise HeddleError(
            f"{run} already exists: continue it with `heddle train --resume {run}`, or choose another --name"
        )
    if being_written(run):
        raise HeddleError(f"{run} is being prepared by another process; choose another --name")
    config = config.with_tuning().with_preset_training()
    start = None if config.model.start is None else read_config(Path(config.model.start)).model
    check_trainable(config, start)
    if isinstance(config.task, ChatConfig):
        now = datetime.now().isoformat(timespec="seconds")
        config = config.model_copy(update={"task": config.task.completed(None if start is None else start.chat, now)})
    check_tokenizer(config)
    start = with_new_tokens(config, start, tell)
    pick_device(config.train.device)  # refuses one that is not there
    # Refuse impossible sizes before any work.
    base = None if start is None else with_family_head(start, config.task)
    smallest = config.model.resolve(config.data.tokenizer_size, min(DEPTHS), CONTEXT, config.task, base)
    if (wrong := config.task.refuses_layout(config.data.layout, tuple(smallest.stacks()))) is not None:
        raise HeddleError(wrong)
    if start is not None:
        check_fits(config, smallest, start)
        config = with_head(config, smallest, start)
    # Without a start, a preset or a depth, the depth, and so the names, depend on the time given.
    if (config.model.start, config.model.preset, config.model.depth) != (None, None, None):
        check_groups(adapt(build(smallest, "meta"), config.train.lora), config.train)
    vectors = config.train.vectors
    if vectors is not None:
        check_width(config, vectors, smallest)
    if run.parent.is_dir():
        remove_leftovers(run.parent)
    with open_dataset(config.data, config.task, again=bool(texts_of)) as found:
        tell(f"reading {name_sources(config.data)}")
        needs = cache_key(config, found)
        tokens = lookup(config, needs, [*map(Path, texts_of)], tell)
        if tokens is None:
            tell(found.read(tell))
        if vectors is not None:
            tell(f"checking {vectors}")
            for _ in read_vectors(vectors, tell):
                pass  # read to the end, so that a damaged file is refused before a tokenizer or a model is trained
        with write_directory(run) as partial:
            tokenizer = make_tokenizer(config, found, needs, tokens, tell)
            tokenizer.save(partial / TOKENIZER)

            def cut() -> Store:
                return (
                    link(tokens, partial / DATA)
                    if tokens
                    else make_tokens(config, found, needs, partial, tokenizer, tell)
                )

            return fill(partial, config, tokenizer, cut, smallest, base, tell)


def fill(
    run: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    cut: Callable[[], Store],
    smallest: TransformerConfig,
    start: TransformerConfig | None,
    tell: Tell,
) -> Plan:
    """Fill the directory of a new run and return its plan.

    Args:
        tokenizer: its tokenizer, which is in the directory.
        cut: makes the tokens in the directory.
        smallest: the model that the config describes, apart from its depth.
        start: the model of the run to start from with the head that suits the task, or None.
    """
    vectors = config.train.vectors
    taken = None if vectors is None else take_rows(vectors, tokenizer, run, tell)
    if taken and isinstance(smallest.head, LanguageHeadConfig) and smallest.head.tied:
        tell("the head is tied, so it scores with these vectors too; set head.tied=false for separate weights")
    store = cut()
    tell("measuring this machine")
    planned = plan(config, store, tokenizer, pick_device(config.train.device).type, taken, start)
    reading = DataSpec(
        store.corpus,
        planned.model,
        planned.chosen.batch,
        tokenizer=tokenizer,
        batch_tokens=planned.chosen.batch_tokens,
        multiple=MULTIPLE * config.train.accumulate,
        layout=config.data.layout,
    )
    for line in make_task(config.task, reading).remarks():
        tell(line)
    if config.model.start is not None:
        tell(f"taking the weights of {config.model.start}")
        before = read_tokenizer(config) or tokenizer
        chosen = take_start(config.model.start, planned, run, tell, before.vocab_size, tokenizer.vocab_size)
        planned = replace(planned, chosen=chosen)
    parts = {"data": config.data, "task": config.task, "train": config.train, "chosen": planned.chosen}
    prompts = config.task.prompts(config.data.layout, planned.model.stacks())
    saved = SavedConfig(model=planned.model.override({"prompts": prompts}), **parts)
    (run / "config.json").write_text(saved.to_json(), encoding="utf-8")
    return planned


def with_new_tokens(config: RunConfig, start: TransformerConfig | None, tell: Tell) -> TransformerConfig | None:
    """The model to start from with room for the special tokens that its tokenizer gets."""
    before, after = read_tokenizer(config), start_tokenizer(config)
    if start is None or before is None or after is None or before.vocab_size == after.vocab_size:
        return start
    new = [name for name in after.special if name not in before.special]
    tell(f"the tokenizer gets {', '.join(new)}; their vectors start as the mean of the others")
    if config.train.lora is not None and not any(row.frozen is False for row in config.train.groups):
        row = '[[train.groups]] with parameters = "embedding.weight", frozen = false'
        tell(f"and they stay so, since lora trains no token table; {row} trains it")
    return start.override({"vocab_size": max(start.vocab_size, after.vocab_size)})


def check_trainable(config: RunConfig, start: TransformerConfig | None = None) -> None:
    """Refuse a model whose stacks do not fit the task, and settings that a run to start from decides.

    Args:
        start: the model of the run to start from, if there is one.

    Raises:
        HeddleError: they do not fit, or there is no preset of that name.
    """
    name, families = config.model.preset, config.task.families
    if start is None:
        if config.train.lora is not None:
            raise HeddleError(
                "lora trains adapters beside the weights of another run: name it, from=RUN, or leave lora out"
            )
        what, base = f"preset = {name!r}", None if name is None else preset(name)
    else:
        what, base = f"from = {config.model.start!r}", start
        if config.train.vectors is not None:
            raise HeddleError(f"{what} brings its own token table: leave out vectors")
        own = (Path(config.model.start or "") / TOKENIZER).is_file()
        if own and "tokenizer" in config.data.model_fields_set:
            raise HeddleError(f"{what} brings its own tokenizer: leave out tokenizer = {config.data.tokenizer!r}")
        if not own and config.data.tokenizer in TRAINABLE:
            raise HeddleError(f"{what} has no tokenizer.json: set tokenizer to the path of the one it was trained with")
    stacks = families[0] if base is None else tuple(base.stacks())
    if stacks not in families:
        needed = " or ".join(FAMILIES[each] for each in families)
        raise HeddleError(
            f"{what} is {FAMILIES[stacks]}, but the task {config.task.kind!r} trains only {needed}; "
            f"for {FAMILIES[stacks]}, set task to {' or '.join(tasks_for(stacks))}"
        )


def tasks_for(stacks: tuple[str, ...]) -> list[str]:
    """The tasks that a model with these stacks can learn."""
    return [kind.model_fields["kind"].default for kind in models_in(TaskConfig) if stacks in kind.families]


def check_fits(config: RunConfig, model: TransformerConfig, start: TransformerConfig) -> None:
    """Refuse settings that a model below its head cannot have, since it starts from a run's weights.

    Raises:
        HeddleError: a weight would be missing or have another shape.
    """
    states = build(model, "meta").state_dict(), cut_tensors(build(start, "meta").state_dict(), model)
    mine, theirs = ({name: tuple(each.shape) for name, each in state.items() if not is_head(name)} for state in states)
    if mine != theirs:
        name = next(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
        said = ", ".join(key for key in sorted(config.model.model_fields_set - CUTTING)) or "context"
        raise HeddleError(
            f"from = {config.model.start!r} has other weights than these settings ask for, first {name}: leave out {said}"
        )


def with_head(config: RunConfig, model: TransformerConfig, start: TransformerConfig) -> RunConfig:
    """The same config; with adapters, it says whether the head is trained too: if it is new, or scores classes."""
    lora = config.train.lora
    if lora is None or lora.head is not None:
        return config
    mine, theirs = (
        {name: each.shape for name, each in build(each_config, "meta").state_dict().items() if is_head(name)}
        for each_config in (model, start)
    )
    head = bool(mine) and (mine != theirs or isinstance(model.head, ClassifierHeadConfig))
    return config.model_copy(update={"train": config.train.override({"lora.head": head})})


def name_sources(data: DataConfig) -> str:
    """The sources, in words."""
    return (
        ", ".join((*data.sources, *data.validation_sources))
        if data.sources
        else "the Python standard library's sources on this machine"
    )


def make_tokenizer(
    config: RunConfig, found: RawDataset, needs: CacheKey, tokens: Tokens | None, tell: Tell
) -> Tokenizer:
    """The tokenizer that a config asks for: given, or trained on the text, by this run or by the one that made the tokens."""
    data = config.data
    if needs.tokenizer is not None:
        return needs.tokenizer
    if tokens is not None:
        return load_tokenizer(tokens.tokenizer)
    tell(f"training a tokenizer ({data.tokenizer})")
    # One document has no boundary to mark, so a character vocabulary holds exactly the text's characters.
    whole = data.tokenizer == "characters" and found.one_text
    special: tuple[str, ...] = () if whole else (END_OF_TEXT,)
    special = tuple(dict.fromkeys((*special, *config.task.special_tokens, *data.special_tokens)))
    tokenizer = train_tokenizer(data.tokenizer, found.texts(), data.tokenizer_size, special, tell)
    # The sizes of byte and character vocabularies are fixed by the text.
    if KINDS[tokenizer.kind].min_vocab_size is not None and tokenizer.vocab_size < data.tokenizer_size:
        tell(f"{tokenizer.vocab_size:,} ids: the text is too short for tokenizer_size = {data.tokenizer_size:,}")
    return tokenizer


def take_start(run: str, planned: Plan, partial: Path, tell: Tell, known: int, count: int) -> Chosen:
    """Store the weights to start from in the new run, so that it never needs the other run again.

    Args:
        known: ids that the tokenizer had there.
        count: ids that it has here.

    Raises:
        HeddleError: the run has no weights, or they do not fit the planned model.
    """
    wanted = build(planned.model, "meta").state_dict()
    tensors = grown(cut_tensors(load(run, "cpu").model.state_dict(), planned.model), wanted, known, count)
    chosen = planned.chosen.override({"start": {"run": run, "sha256": save_start(tensors, partial / START)}})
    assert chosen.start is not None
    if not load_start(build(planned.model), partial / START, chosen.start.sha256):
        tell(f"the head is new: {planned.model.head.kind}")
    return chosen


def check_width(config: RunConfig, vectors: str, model: TransformerConfig) -> None:
    """Refuse a file whose vectors are not as wide as the token table. Only the file's first line is read.

    Args:
        model: the model that the config describes, apart from its depth.

    Raises:
        HeddleError: the widths differ, with what to set; the file cannot be read; or the width depends on the time given.
    """
    width, choice = vector_width(vectors), config.model
    entry = model.last()[1].entry
    chosen = (choice.preset, choice.depth, choice.dim) != (None, None, None)
    if chosen and entry.tokens_dim(model.dim) == width:
        return
    wanted = width if entry.combine == "sum" else width + (entry.position_dim or width)
    there, advice = "the model's width is chosen by time", f"set dim={wanted}"
    if chosen:
        there = f"the model's {entry.tokens_dim(model.dim):,}"
        advice = f"use vectors as wide as the model's, or {advice}"
    try:
        choice.model_copy(update={"dim": wanted}).resolve(config.data.tokenizer_size, min(DEPTHS), CONTEXT, config.task)
    except HeddleError as error:
        advice += f" and fix what then does not fit: {error}"
    raise HeddleError(f"{vectors}: its vectors have {pluralize(width, 'number')} and {there}: {advice}")


def take_rows(vectors: str, tokenizer: Tokenizer, run: Path, tell: Tell) -> TakenVectors:
    """Store a file's vectors for a run's tokens in the run, so that the run never needs the file again.

    Raises:
        HeddleError: the file cannot be read, or none of its words is a token.
    """
    rows = find_rows(tokenizer, vectors, tell)
    known = rows.coverage
    if not known.found:
        raise HeddleError(
            f"{vectors}: none of its words is one of the {known.vocabulary:,} tokens; try tokenizer=words"
        )
    tell(f"{vectors} knows {known.found:,} of {pluralize(known.vocabulary, 'token')} ({known.share:.0%})")
    return TakenVectors(
        found=known.found,
        vocabulary=known.vocabulary,
        unused=known.unused,
        sha256=save_rows(run / VECTORS, rows),
    )
