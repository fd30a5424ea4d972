"""From a user's settings to what a run will be, before its text is read: every refusal that needs no text is here."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import get_args

import torch

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.config.presets import preset
from heddle.config.problems import models_in
from heddle.config.run import RunConfig
from heddle.config.tasks import ChatConfig, TaskConfig
from heddle.convert.word_vectors import vector_width
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize, problems_of, together
from heddle.model.build import build
from heddle.model.device import pick_device
from heddle.model.groups import check_groups
from heddle.model.lora import adapt
from heddle.runs.start import Start, check_start, new_token_notes
from heddle.runs.tokenizers import check_tokenizer, existing_tokenizer, with_needed_tokens
from heddle.text.base import Kind
from heddle.text.tokenizer import Tokenizer
from heddle.train.runtime import prepare_deterministic
from heddle.weights.checkpoints import TOKENIZER
from heddle.weights.run import read_config

CONTEXT = 256  # default context
DEPTHS = range(2, 13)  # without a depth, one of these is chosen by time
TRAINABLE = get_args(Kind)
FAMILIES = {
    ("encoder",): "an encoder",
    ("decoder",): "a decoder",
    ("encoder", "decoder"): "an encoder-decoder",
}


@displayed()
@dataclass(frozen=True)
class Resolved:
    """What a run will be, as far as that is known before its text is read.

    Attributes:
        config: the settings, with presets and tuning applied.
        start: the run to start from, or None.
        tokenizer: the tokenizer that exists already, with the special tokens that the task needs; None: one is trained.
        device: where it trains.
        smallest: the model at the least depth, with the requested vocabulary and without names of classes.
        notes: what the user should know.
    """

    config: RunConfig
    start: Start | None
    tokenizer: Tokenizer | None
    device: torch.device
    smallest: TransformerConfig
    notes: tuple[str, ...] = ()

    @property
    def has_depth(self) -> bool:
        """Whether the settings decide the depth. Otherwise it is chosen by time, and with it the names of parameters."""
        choice = self.config.model
        return (choice.start, choice.preset, choice.depth) != (None, None, None)

    def model(self, vocab_size: int, depth: int = min(DEPTHS), classes: tuple[str, ...] = ()) -> TransformerConfig:
        """The model for a tokenizer and the data's classes; see `heddle.config.run.ModelChoice.resolve`."""
        base = None if self.start is None else self.start.base
        return self.config.model.resolve(vocab_size, depth, CONTEXT, self.config.task, base, classes)


@checked()
def resolve(config: RunConfig, now: str | None = None) -> Resolved:
    """Decide everything that settings decide without the text.

    Args:
        config: the user's settings.
        now: the moment that a chat template asks for, as ISO 8601; None: the present one.

    Raises:
        HeddleError: the settings cannot work; one line says what to change, for all settings that can be judged alone.
    """
    config = config.with_tuning().with_preset_training()
    model = None if config.model.start is None else read_config(Path(config.model.start)).model
    device = together(problems_of(lambda: check_trainable(config, model)), lambda: pick_device(config.train.device))
    prepare_deterministic(config.train.deterministic, device.type)
    if isinstance(config.task, ChatConfig):
        now = now or datetime.now().isoformat(timespec="seconds")
        config = config.model_copy(update={"task": config.task.completed(None if model is None else model.chat, now)})
    before = existing_tokenizer(config.data, config.model.start)
    tokenizer = with_needed_tokens(before, config)
    check_tokenizer(config, tokenizer)
    start, notes = None, list[str]()
    if before is not None and tokenizer is not None and model is not None:
        start, notes = Start.of(config, model, before, tokenizer), new_token_notes(config, before, tokenizer)
    base = None if start is None else start.base
    smallest = config.model.resolve(config.data.tokenizer_size, min(DEPTHS), CONTEXT, config.task, base)
    problems = []
    if (reason := config.task.refuses_layout(config.data.layout, tuple(smallest.stacks()))) is not None:
        problems.append(reason)
    if (vectors := config.train.vectors) is not None:
        problems += problems_of(lambda: check_width(config, vectors, smallest))
    resolved = Resolved(config, start, tokenizer, device, smallest, tuple(notes))
    return together(problems, lambda: _with_checked_names(resolved))


def _with_checked_names(resolved: Resolved) -> Resolved:
    """The same, with what the names of the model's parameters decide.

    Raises:
        HeddleError: the run to start from, adapters or groups name parameters that the model does not have.
    """
    config, skeleton = resolved.config, build(resolved.smallest, "meta")
    if resolved.start is not None:
        config = check_start(config, skeleton, resolved.start)
    if resolved.has_depth:
        check_groups(adapt(skeleton, config.train.lora), config.train)
    return replace(resolved, config=config)


def check_trainable(config: RunConfig, start: TransformerConfig | None = None) -> None:
    """Refuse a model whose stacks do not fit the task, and settings that a run to start from decides.

    Args:
        config: the settings.
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
        has_tokenizer = (Path(config.model.start or "") / TOKENIZER).is_file()
        if has_tokenizer and "tokenizer" in config.data.model_fields_set:
            raise HeddleError(f"{what} brings its own tokenizer: leave out tokenizer = {config.data.tokenizer!r}")
        if not has_tokenizer and config.data.tokenizer in TRAINABLE:
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


def check_width(config: RunConfig, vectors: str, model: TransformerConfig) -> None:
    """Refuse a file whose vectors are not as wide as the token table. Only the file's first line is read.

    Args:
        config: the settings.
        vectors: the file.
        model: the model that they describe, apart from its depth.

    Raises:
        HeddleError: the widths differ, with what to set; the file cannot be read; or the width depends on the time given.
    """
    width, choice = vector_width(vectors), config.model
    entry = model.last()[1].entry
    fixed = (choice.preset, choice.depth, choice.dim) != (None, None, None)
    if fixed and entry.tokens_dim(model.dim) == width:
        return
    dim = width if entry.combine == "sum" else width + (entry.position_dim or width)
    problem, advice = "the model's width is chosen by time", f"set dim={dim}"
    if fixed:
        problem = f"the model's {entry.tokens_dim(model.dim):,}"
        advice = f"use vectors as wide as the model's, or {advice}"
    try:
        choice.model_copy(update={"dim": dim}).resolve(config.data.tokenizer_size, min(DEPTHS), CONTEXT, config.task)
    except HeddleError as error:
        advice += f" and fix what then does not fit: {error}"
    raise HeddleError(f"{vectors}: its vectors have {pluralize(width, 'number')} and {problem}: {advice}")
