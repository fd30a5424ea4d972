"""A tokenizer and a model that suit a task and its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from heddle.checks import at_least, checked
from heddle.config.keywords import ModelSettings
from heddle.config.run import ModelChoice, RunConfig
from heddle.config.tasks import TaskSettings
from heddle.convert.heads import with_family_head
from heddle.data.in_memory import InMemoryData
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.runs.resolve import CONTEXT
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, train_tokenizer
from heddle.weights.run import load, read_config
from heddle.weights.start import adopt, cut_tensors

DEPTH = 2  # of a new model, unless its user sets one


@checked(vocab_size=at_least(1))
def tokenizer_for(
    task: str | TaskSettings,
    data: Any,
    kind: str = "bpe",
    vocab_size: int = 4096,
    columns: Mapping[str, str] | None = None,
    skip_invalid: bool = False,
) -> Tokenizer:
    """Train a tokenizer on the texts of the data, with the special tokens that the task needs.

    Args:
        task: its config, or its kind, such as "translation".
        data: texts or records, as `heddle.fit` reads them.
        kind: see `heddle.train_tokenizer`.
        vocab_size: the most ids, special tokens included; not used for bytes and characters.
        columns: the columns of dicts by field, where they have other names than the fields.
        skip_invalid: leave out malformed items, as `heddle.fit` does.

    Raises:
        HeddleError: the data do not fit the task, or the vocabulary is too small.
    """
    items = _in_memory(task, data, columns, skip_invalid)
    special = tuple(dict.fromkeys((END_OF_TEXT, *items.task.special_tokens)))
    return train_tokenizer(kind, items.texts(), None if kind in ("bytes", "characters") else vocab_size, special)


@checked(depth=at_least(1), context=at_least(1))
def model_for(
    task: str | TaskSettings,
    tokenizer: Tokenizer,
    data: Any = None,
    depth: int | None = None,
    context: int | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    skip_invalid: bool = False,
    start: str | Path | None = None,
    **choice: Unpack[ModelSettings],
) -> Transformer:
    """Build a model with the stacks and the head that a task needs, as `heddle train` does: new, or with the weights of a run.

    Args:
        task: its config, or its kind, such as "classification".
        tokenizer: its tokenizer.
        data: records, as `heddle.fit` reads them; of a task with classes, the head has theirs.
        depth: blocks of each stack: 2 by default; of `start`, the first ones, by default all.
        context: most tokens in a row: 256 by default, or that of `start`.
        seed: of the initial weights.
        columns: the columns of dicts by field, where they have other names than the fields.
        skip_invalid: leave out malformed items, as `heddle.fit` does.
        start: a trained or imported run whose weights to take; if it has no head for the task, that of its published family is new.
        choice: further settings of `heddle.config.ModelChoice`, such as `dim=128`, `family="decoder"` or `dropout=0.1`.

    Raises:
        HeddleError: the sizes are impossible, the family does not suit the task, the classes are not known, or the run has fewer
            layers or learned positions, or other weights.
    """
    if "preset" in choice:
        raise HeddleError("model_for does not know preset: use heddle.preset and heddle.build")
    settings = _run(task, columns).task
    classes: tuple[str, ...] = ()
    if settings.has_classes:
        if data is None:
            raise HeddleError("model_for: data = None: must be the labelled data, whose classes the head gets")
        classes = _in_memory(task, data, columns, skip_invalid).classes()
    sizes = {"depth": depth, "context": context, "start": None if start is None else str(start)}
    chosen = ModelChoice.of(
        {**{name: each for name, each in sizes.items() if each is not None}, **choice}, where="model_for"
    )
    base = None if start is None else with_family_head(read_config(Path(start)).model, settings)
    if base is not None and tuple(base.stacks()) not in settings.families:
        kind = type(settings).model_fields["kind"].default
        raise HeddleError(f"model_for: start = {str(start)!r} has other stacks than the task {kind!r} needs")
    config = chosen.resolve(tokenizer.vocab_size, depth or DEPTH, context or CONTEXT, settings, base, classes)
    model = build(config, seed=seed)
    if start is not None:
        adopt(model, cut_tensors(load(start, "cpu").model.state_dict(), config), Path(start))
    return model


def _in_memory(
    task: str | TaskSettings, data: Any, columns: Mapping[str, str] | None, skip_invalid: bool
) -> InMemoryData:
    run = _run(task, columns)
    return InMemoryData(data, run.task, run.data.override({"skip_invalid": skip_invalid}))


def _run(task: str | TaskSettings, columns: Mapping[str, str] | None) -> RunConfig:
    return RunConfig.of({"task": task, "data": dict(columns or {})}, where="task")
