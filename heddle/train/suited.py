"""A tokenizer and a model that suit a task and its data."""

from collections.abc import Mapping
from typing import Any, Unpack

from heddle.checks import at_least, checked
from heddle.config.keywords import ModelSettings
from heddle.config.run import ModelChoice, RunConfig
from heddle.config.tasks import TaskSettings
from heddle.data.given import Given
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, train_tokenizer
from heddle.train.plan import CONTEXT


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
    given = _given(task, data, columns, skip_invalid)
    special = tuple(dict.fromkeys((END_OF_TEXT, *given.task.special_tokens)))
    return train_tokenizer(kind, given.texts(), None if kind in ("bytes", "characters") else vocab_size, special)


@checked(depth=at_least(1), context=at_least(1))
def model_for(
    task: str | TaskSettings,
    tokenizer: Tokenizer,
    data: Any = None,
    depth: int = 2,
    context: int = CONTEXT,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    skip_invalid: bool = False,
    **choice: Unpack[ModelSettings],
) -> Transformer:
    """Build a model with the stacks and the head that a task needs, as `heddle train` does.

    Args:
        task: its config, or its kind, such as "classification".
        tokenizer: its tokenizer.
        data: records, as `heddle.fit` reads them; of a task with classes, the head has theirs.
        depth: blocks of each stack.
        context: most tokens in a row.
        seed: of the initial weights.
        columns: the columns of dicts by field, where they have other names than the fields.
        skip_invalid: leave out malformed items, as `heddle.fit` does.
        choice: further settings of `heddle.config.ModelChoice`, such as `dim=128`, `family="decoder"` or `dropout=0.1`.

    Raises:
        HeddleError: the sizes are impossible, the family does not suit the task, or the classes are not known.
    """
    for name in ("start", "preset"):
        if name in choice:
            raise HeddleError(
                f"model_for does not know {name}: load a run with heddle.load, or use heddle.preset and heddle.build"
            )
    settings = _run(task, columns).task
    classes: tuple[str, ...] = ()
    if settings.has_classes:
        if data is None:
            raise HeddleError("model_for: data = None: must be the labelled data, whose classes the head gets")
        classes = _given(task, data, columns, skip_invalid).classes()
    found = ModelChoice.of({"depth": depth, "context": context, **choice}, where="model_for")
    return build(found.resolve(tokenizer.vocab_size, depth, context, settings, classes=classes), seed=seed)


def _given(task: str | TaskSettings, data: Any, columns: Mapping[str, str] | None, skip_invalid: bool) -> Given:
    run = _run(task, columns)
    return Given(data, run.task, run.data.override({"skip_invalid": skip_invalid}))


def _run(task: str | TaskSettings, columns: Mapping[str, str] | None) -> RunConfig:
    return RunConfig.of({"task": task, "data": dict(columns or {})}, where="task")
